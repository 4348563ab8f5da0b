"""The libraries that the formats are made for read them; each of these tests is skipped where its library is not."""

from __future__ import annotations

import warnings

import pytest

from aoq.pipeline.tables.exchange.formats import FORMATS


@pytest.fixture
def load(tmp_path):
    """`datasets.load_dataset`, with a cache of its own and no network."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        datasets = pytest.importorskip("datasets")

    def load_dataset(*arguments, **options):
        return datasets.load_dataset(*arguments, split="train", cache_dir=str(tmp_path / "cache"), **options)

    return load_dataset


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["triplet", "n-tuple", "labeled-pair", "labeled-list", "flagembedding", "tevatron"])
def test_datasets_read_one_file(name, load, outgoing, tmp_path):
    written = FORMATS[name].write(outgoing("i2t"), tmp_path / "out")
    kind = "json" if name in ("flagembedding", "tevatron") else "parquet"
    assert len(load(kind, data_files=str(tmp_path / "out"))) == written.rows


@pytest.mark.filterwarnings("ignore")
def test_datasets_read_pylates_tables_by_name(load, outgoing, world, tmp_path):
    written = FORMATS["pylate"].write(outgoing("i2t", scored=True), tmp_path / "out")
    train, queries, documents = (load(str(tmp_path / "out"), name=name) for name in ("train", "queries", "documents"))
    assert len(train) == written.rows
    assert queries["text"][:] == world.ids
    assert documents["text"][:] == world.texts
    assert {len(ids) for ids in train["document_ids"]} == {5}


@pytest.mark.filterwarnings("ignore")
def test_datasets_read_a_table_of_ours(load, world):
    rows = load("parquet", data_files=str(world.folder / "table" / "i2t.parquet"))
    assert rows["negative_ids"][:] == world.table.i2t.negative_ids.tolist()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "loss", "scored"),
    [
        ("triplet", "TripletLoss", False),
        ("n-tuple", "MultipleNegativesRankingLoss", False),
        ("n-tuple", "MarginMSELoss", True),
        ("labeled-pair", "ContrastiveLoss", False),
        ("labeled-pair", "CosineSimilarityLoss", True),
    ],
)
def test_sentence_transformers_trains_on_it(name, loss, scored, load, outgoing, tmp_path):
    """With a model of word vectors, for one epoch."""
    library = pytest.importorskip("sentence_transformers")
    pytest.importorskip("accelerate")
    from sentence_transformers.sentence_transformer import losses
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokens = Tokenizer(models.WordLevel({"[UNK]": 0, "caption": 1, "jpg": 2}, unk_token="[UNK]"))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    FORMATS[name].write(outgoing("t2i", scored=scored), tmp_path / "out")
    model = library.SentenceTransformer(modules=[StaticEmbedding(tokens, embedding_dim=4)], device="cpu")
    given = {"output_dir": str(tmp_path / "run"), "report_to": "none", "save_strategy": "no", "use_cpu": True}
    trainer = library.SentenceTransformerTrainer(
        model,
        library.SentenceTransformerTrainingArguments(num_train_epochs=1, **given),
        load("parquet", data_files=str(tmp_path / "out")),
        loss=getattr(losses, loss)(model),
    )
    assert trainer.train().global_step > 0
