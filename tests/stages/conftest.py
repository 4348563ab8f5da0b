"""Experiments on two small worlds, made stage by stage in this process."""

import shutil
from pathlib import Path

import pytest
import torch

from aoq.pipeline.data.demo import write_demo_world
from aoq.pipeline.data.vocabulary import tokenise
from aoq.pipeline.engine import Engine
from aoq.pipeline.stages.plan import MAKERS, plan
from aoq.pipeline.training.metrics import read_metrics

EXPERIMENT = """
dataset.folder = "{folder}"
model = {{name = "{model}", {options}}}
{teacher}
second_round = {{{second_round}}}
{more}
"""
OWN = 'first_round = {epochs = 1, batch_size = 16, loss.name = "online"}\nmining = {h_captions = 9, h_images = 4}'
SHORT = 'epochs = 1, batch_size = 16, loss.name = "LOSS"'
MINING = ["dataset", "first_round", "embeddings", "hard_negatives"]
ENGINE = Engine(device="cpu", threads=1)
STUDENT = """
teacher = "{teacher}"
dataset.demo = {{images = 60, dev_images = 20}}
model = {{name = "scan", embedding_size = 16, word_size = 8, bidirectional = false}}
second_round = {{epochs = 1, batch_size = 16, loss.name = "{loss}"}}
"""
TINY = str(Path(__file__).parent.parent / "tiny.toml")
REFRESHED = "refresh={rounds=1, h_captions=10, h_images=4}"


def lines_with(name, chain, stage="second_round"):
    """The values of that name in the lines that a training logged."""
    return [line[name] for line in read_metrics(chain[stage].path / "metrics.jsonl") if name in line]


def chain_of(override="", name=TINY, root=Path("/nowhere")):
    """An experiment planned, with what is made and read in one place; by default nothing is."""
    return plan(name, data_root=root, artifact_root=root, override=override)


def keys_of(chain):
    return {stage: artifact.key for stage, artifact in chain.stages.items()}


def make_stage(chain, stage, engine=ENGINE):
    """Make a stage from those before it, unless it is there."""
    with chain[stage].building() as build:
        if build is not None:
            MAKERS[stage](chain.owner(stage), build, engine)


@pytest.fixture(scope="session")
def data_root(tmp_path_factory):
    """Worlds `one` and `two`, of 40 images to train on and 12 to judge by."""
    root = tmp_path_factory.mktemp("data")
    write_demo_world(root / "one", images=40, dev_images=12, seed=0)
    write_demo_world(root / "two", images=40, dev_images=12, seed=1)
    return root


@pytest.fixture
def own_root(data_root, tmp_path):
    """A data root with a copy of world `one`, to be spoilt."""
    shutil.copytree(data_root / "one", tmp_path / "spoilt" / "one")
    return tmp_path / "spoilt"


@pytest.fixture(scope="session")
def make_once(tmp_path_factory):
    """(chain, stage) -> make a stage, or copy it if a test before made it: the same key has the same content."""
    store = tmp_path_factory.mktemp("store")

    def run(chain, stage):
        artifact = chain[stage]
        kept = store / artifact.stage / artifact.key
        if kept.exists() and not artifact.exists():
            shutil.copytree(kept, artifact.path)
        make_stage(chain, stage)
        if not kept.exists():
            shutil.copytree(artifact.path, kept)

    return run


@pytest.fixture
def make(data_root, tmp_path, make_once):
    """Plan an experiment from its parts, or from `text`, and make the stages; `mining` is all up to the table."""
    usual = {"folder": "one", "model": "vsepp", "teacher": OWN, "second_round": SHORT, "more": ""}
    usual |= {"options": "embedding_size = 16, word_size = 8"}

    def run(name, *stages, loss="offtri", text=EXPERIMENT, root=data_root, **parts):
        path, parts = tmp_path / f"{name}.toml", usual | parts
        path.write_text(text.format(**parts | {"second_round": parts["second_round"].replace("LOSS", loss)}))
        chain = plan(str(path), data_root=root, artifact_root=tmp_path / "artifacts")
        for given in stages:
            for stage in MINING if given == "mining" else [given]:
                make_once(chain, stage)
        return chain

    return run


@pytest.fixture
def file_of(tmp_path):
    """(name) -> the path of an experiment made here, as a string."""
    return lambda name: str(tmp_path / f"{name}.toml")


@pytest.fixture
def write(file_of):
    """(name, text) -> the path of an experiment's file with that text."""

    def file(name, text):
        Path(file_of(name)).write_text(text)
        return file_of(name)

    return file


@pytest.fixture
def taught_by(file_of):
    """The line by which a student has the teacher and table of another experiment made here."""
    return lambda name: f'teacher = "{file_of(name)}"'


@pytest.fixture
def places(data_root, tmp_path):
    """Options by which a command finds what is made here."""
    return ["--data-root", str(data_root), "--artifact-root", str(tmp_path / "artifacts")]


@pytest.fixture(scope="session")
def bert(tmp_path_factory):
    """The folder of a BERT that knows the words of the demo, two pieces each where they are long."""
    transformers, folder = pytest.importorskip("transformers"), tmp_path_factory.mktemp("bert")
    write_demo_world(folder / "world", images=40, dev_images=12, seed=0)
    words = {word for line in (folder / "world" / "train_caps.txt").read_text().splitlines() for word in tokenise(line)}
    pieces = sorted({word[:4] for word in words} | {f"##{word[4:]}" for word in words if len(word) > 4})
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces]))
    tokeniser = transformers.BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=40)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=len(tokeniser), max_position_embeddings=48, **sizes)
    model = transformers.BertModel(config).eval()
    for each in (model, tokeniser):
        each.save_pretrained(folder / "bert")
    return model, tokeniser, folder / "bert"
