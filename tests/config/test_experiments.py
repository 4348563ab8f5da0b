"""Experiments: every shipped one loads, and every mistake is one clear error."""

import inspect

import pytest
from pydantic import ValidationError

from aoq.models import MODELS, build_model
from aoq.models.base import EmbeddingModel
from aoq.pipeline.config import losses
from aoq.pipeline.config.experiment import Experiment
from aoq.pipeline.config.load import load_experiment, names_in
from aoq.pipeline.config.models import ModelSection
from aoq.pipeline.config.tables import Ensemble
from aoq.pipeline.losses import LOSSES
from aoq.pipeline.search.backends import choose_backend
from aoq.pipeline.training.sampler import STRATEGIES

TEXT = """
[dataset.demo]
images = 100

[model]
name = "vsepp"

[first_round]
epochs = 3
loss.name = "online"

[mining]
h_captions = 30
h_images = 6

[second_round]
epochs = 3
warmup = ["sum"]
loss.name = "adapoffquin"
"""

CO_TAUGHT = """
dataset.demo = {}
model.name = "sgr"
co_teaching = {warmup_epochs = 5, epochs = 40}
"""
ENSEMBLE = '[ensemble]\nmembers = ["demo", "demo@seed=1"]\n'
TOWERED = "model={name='dual_encoder', image_tower='timm:a'}, dataset.demo.pictures=true"
LOSS, ANCHORS = "second_round.loss={name", "companions='anchors'"
SOFT = "screen={mutual_rank=3, suspected='soft_margin'}"
LISTS = "second_round.distillation={kind='lists'"
MATCHES = "screen={same_text=true, suspected='positive'}"


@pytest.fixture
def load(tmp_path):
    def load_text(text=TEXT, override=""):
        (tmp_path / "trial.toml").write_text(text)
        return load_experiment(str(tmp_path / "trial.toml"), override)

    return load_text


@pytest.mark.parametrize("name", names_in())
def test_shipped_experiments_load(name):
    assert load_experiment(name).name == name


def test_defaults_are_the_papers(load):
    experiment = load()
    loss = experiment.second_round.loss
    assert (loss.margin_online, loss.margin_offline, loss.alpha, loss.beta) == (0.2, 0.0, 0.3, 1.5)
    assert (experiment.second_round.batch_size, experiment.second_round.gradient_clip) == (128, 2.0)
    assert (experiment.sampling.strategy, experiment.sampling.resample) == ("uniform", True)


def test_overrides_change_values_and_replace_named_sections(load):
    changed = load(override='seed=4, second_round.loss={name="online", margin=0.3}, mining.h_images=9')
    assert (changed.seed, changed.mining.h_images, changed.mining.h_captions) == (4, 9, 30)
    assert (changed.second_round.loss.name, changed.second_round.loss.margin) == ("online", 0.3)
    lists = 'second_round.distillation={kind="lists", teachers=[]}'  # takes away what the experiment names
    assert load_experiment("f8k_vsepp_distillation", lists).second_round.distillation.kind == "lists"


MISTAKES = [
    ("mining.top_g=6", r"\[mining\] has unknown keys \['top_g'\]; allowed keys are \['h_captions', 'h_images', "),
    ("model.size=3", r"\[model\] has unknown keys \['size'\].*'embedding_size'"),
    ("second_round.loss.alfa=1", r"\[second_round.loss\] .*'alfa'.*'alpha'"),
    ("speed=1", r"the top level has unknown keys \['speed'\]"),
    ("first_round.epochs='3'", r"first_round.epochs: .*integer \(got '3'\)"),
    ("mining.h_images=0", r"mining.h_images: .*greater than 0 \(got 0\)"),
    ("model={name='clip'}", r"model: .*'clip'.*'vsepp', 'vsrn', 'scan', 'pfan'"),
    ("first_round.loss={name='of'}", "first_round.loss: there is no loss .*; known are 'sum', 'online'"),
    ("second_round.warmup=['sum', 'sum', 'sum']", "3 warm-up epochs leave none of 3"),
    (f"{LOSS}='infonce', {ANCHORS}, offline_columns=false}}", 'companions = "anchors" needs offline negatives'),
    (f"{LOSS}='offtri', {ANCHORS}, mask_positives=false}}", 'companions = "anchors" needs mask_positives'),
    (f"{LOSS}='offtri', {ANCHORS}}}, second_round.batch_size=5", "no two of them, so no online negative"),
    (f"{LOSS}='offtri', {ANCHORS}}}, sampling.resample=false", r'loss.companions = "anchors" needs \[sampling\]'),
    ("second_round.warmup=['offtri']", r"second_round.warmup.0: .*'sum' or 'online'"),
    ("model={name='dual_encoder', image_tower='timm:a'}", r"reads photographs; set \[dataset.demo\] pictures"),
    ("model={name='dual_encoder', text_tower='static:a'}", r"tokeniser's ids; set \[dataset\] tokeniser"),
    ("second_round.augment=['crop']", r"\[second_round\] augment is for .* has none; set `image_tower`"),
    ("second_round.freeze=['text']", r"\[second_round\] freeze is for .* `image_tower` or `text_tower`"),
    ("second_round={schedule='cosine', decay_epochs=[2]}", "replaces `decay_epochs`"),
    ("second_round.decay_biases=false", "set `weight_decay` as well"),
    ("first_round.loss={name='adapinfonce'}", "'adapinfonce' draws from a table, .*; choose .* or 'infonce'"),
    (f"first_round.loss={{name='infonce', {ANCHORS}}}", "there is no table yet"),
    (f"{LOSS}='infonce', temperature=0.005}}", r"max_scale = 100.0; raise one of them, or set learn_temperature"),
    (f"{LOSS}='sigmoid', hardness_weight=9.0}}", r"\['hardness_weight'\]; allowed keys are \['bias', 'comp"),
    ("model={name='scan'}", "name a `teacher`"),
    ("teacher='demo'", r"exactly one of .* got \['teacher', 'first_round'\]"),
    ("sampling.gap=0.1", "sampling: .*belong to strategy = .*, which needs both"),
    ("sampling.windows=[[0.5, 0.2]]", r"a window is \[start, stop\] .*got \[0.5, 0.2\]"),
    ("sampling.windows=[]", "`windows` is empty"),
    ("sampling.community=8", r"\['community'\] belong to batches = \"mined\""),
    ("sampling.hardness=-1", r"sampling\.hardness: Input should be 'auto', or greater than 0 \(got -1\)$"),
    ("sampling.hardest=9.0", "`hardest` needs a `hardness`"),
    ("sampling={hardness=9.0, h_images=5}", r"take out \['h_images'\]"),
    ("sampling={hardness='auto', hardest=9.0}", "that is a number"),
    ("sampling={hardness=9.0, hardest=9.0}", "must be above hardness = 9.0"),
    (f"{LOSS}='offtri'}}, second_round.start='control', second_round.control='items'", "leave `control` out"),
    ("second_round={control='items', epoch_steps=5}", "`warmup` draws nothing; leave one out"),
    ("sampling.negatives=4", "loss 'adapoffquin' draws a companion for each negative; choose 'offtri'"),
    (f"{LOSS}='offtri', {ANCHORS}}}, sampling.negatives=4", "or leave it out"),
    (f"{LOSS}='offtri'}}, sampling.columns='own'", "set `negatives`, or leave out `columns`"),
    (f"{LOSS}='offtri'}}, sampling={{negatives=2, strategy='normal'}}", "leave out `negatives` or `strategy`"),
    (f"{LOSS}='offtri'}}, sampling={{negatives=2, guide_margin=0.1}}", 'set columns = "own"'),
    (f"{LOSS}='infonce'}}, sampling.negatives=4, {SOFT}", "softens the negative of one anchor"),
    ("second_round.constraints.ccr={weight=1.0, margin=0.1}", r"constraints\] needs attention, but \[model\] vs"),
    ("second_round.constraints={}", "second_round.constraints: no constraint is set; give"),
    ("co_teaching={warmup_epochs=1, epochs=2}", r"take out \['first_round', 'mining', 'second_round'\]"),
    ("dataset.noise.seed=1", "dataset.noise: give `ratio`"),
    ("screen.suspected='drop'", "screen: .*no rule is set"),
    ("screen={range_min=5, range_max=5}", "leaves nothing"),
    ("screen.doubtful_pair=0.5", "belong together"),
    ("screen={mutual_rank=5, judged_match=0.5}", "are for `judgements`"),
    ("screen={judgements='x.csv', judged_grades=[5, 1]}", "the lowest grade and a higher one"),
    ("screen={range_min=2, margin_positive='mean'}", "is for `absolute_margin` and `relative_margin`; set one"),
    ("screen={mutual_rank=3, max_uses=2, suspected='keep'}", 'suspected = "keep" draws suspects as well; choose'),
    ("screen={relative_margin=0.1, margin_positive='own', suspected='keep'}", 'it takes suspected = "drop" and no'),
    ("screen.match_prior=0.1", '"drop" drops nothing; choose "downweight"'),
    (SOFT, "loss 'adapoffquin' has no margin_offline above 0; set it, or choose"),
    (f"{LISTS}}}, {SOFT}", "has no margin_offline above 0"),
    (f"{LISTS}, negatives=1, list_loss='ranking'}}", "orders an anchor's negatives; set `negatives` to at least 2"),
    (f"{LOSS}='online'}}, {MATCHES}", "needs a loss that draws from the table, without distillation of lists"),
    (f"{LISTS}}}, {MATCHES}", "needs a loss that draws from the table, without"),
    (f"{LISTS}, list_loss='margin_mse', temperature=0.1}}", '"margin_mse" has no temperature; leave `temperature`'),
    ("second_round.distillation={teachers=[{images='a.npy'}]}", "teachers.0.files.captions: Field required"),
    (f"{LOSS}='offtri', margin_offline=0.2, {ANCHORS}}}, {SOFT}", 'with companions = "anchors" most pairs of a'),
    ("refresh.rounds=1, second_round.loss.name='online'", r"\[refresh\] makes tables, but loss 'online' uses none"),
    (f"{TOWERED}, dataset.max_regions=3", r"max_regions cuts region features, but an image_tower reads none"),
    (f"{TOWERED}, second_round.freeze=['image', 'text']", r"freeze names 'text', but .* has no `text_tower`; take"),
    (
        f"{TOWERED}, second_round={{freeze=['image'], lora={{rank=4}}}}",
        "lora is for towers that are not frozen, and .*; take one of them out",
    ),
    (f"{LOSS}='offquin', margin_online=0.0}}, second_round.start_up='auto'", "margin .* of 'offquin' is 0"),
    ("seed", r"override 'seed' is not .* such as `seed=1"),
]
OTHERS = [
    (CO_TAUGHT, "screen={mutual_rank=3}", r"take out \['screen'\]"),
    (CO_TAUGHT, 'weights="x.safetensors"', r"take out \['weights'\]"),
    (CO_TAUGHT, 'sampling={strategy="normal"}', r"take out \['sampling'\]"),
    (CO_TAUGHT, "co_teaching.threshold=1.0", "less than 1"),
    (CO_TAUGHT, "co_teaching.margin=0.0", "greater than 0"),
    (CO_TAUGHT, 'co_teaching.soft_margin="cubic"', "'exponential', 'linear' or 'sin'"),
    (CO_TAUGHT, "co_teaching.warm=1", r"\[co_teaching\] has unknown keys \['warm'\]; allowed keys are .*'batch_size'"),
    (ENSEMBLE, "ensemble.weights=[1.0]", "1 weights for 2 members"),
    (ENSEMBLE, "ensemble.weights=[1.0, 0.0]", r"ensemble.weights.1: .*greater than 0"),
    (ENSEMBLE, "ensemble.model.name='scan'", r"\[ensemble\] has unknown keys \['model'\]; .*'members', 'weights'\]"),
    (ENSEMBLE, "model={}", r"top level has unknown keys \['model'\]; .* \['ensemble', 'evaluation', 'name'\]"),
    (ENSEMBLE, "ensemble.members=['demo']", "at least 2 items"),
    (ENSEMBLE, "ensemble.members=['demo', 'demo']", "a member appears twice"),
]


@pytest.mark.parametrize(("text", "override", "message"), [*((TEXT, *one) for one in MISTAKES), *OTHERS])
def test_mistakes_are_named(load, text, override, message):
    with pytest.raises(ValueError, match=message) as raised:
        load(text, override)
    assert override == "seed" or "trial.toml, changed by the override" in str(raised.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[mining]\nh_captions = 30\nh_images = 6", "", r"give either \[mining\], to make a table, or `teacher`"),
        ("[dataset.demo]\nimages = 100", "[dataset]", "set one of `folder`"),
        ("[model]", "[model", "not a TOML file"),
        ("[model]", "deep = " + "[" * 3000 + "\n[model]", "not a TOML file .it is nested too deeply"),
        ("[model]", "seed = 99999999999999999999\n[model]", "99999999999999999999 has more than 64 bits"),
        ('loss.name = "online"', "decay = 1e999", "first_round.decay: .*finite number"),
    ],
)
def test_a_wrong_file_is_named(load, old, new, message):
    assert old in TEXT
    with pytest.raises(ValueError, match=message) as raised:
        load(TEXT.replace(old, new, 1))
    assert "trial.toml" in str(raised.value)


def test_what_is_no_experiment_file_is_named(tmp_path):
    nameless = tmp_path / "...toml"
    nameless.write_text(TEXT)
    with pytest.raises(ValueError, match=r"experiment file .*\.\.\.toml has no name before \.toml"):
        load_experiment(str(nameless))
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "endless.toml").symlink_to("/dev/zero")
    for name, reason in (("folder", "it is a folder"), ("endless", "it is not a regular file")):
        with pytest.raises(ValueError, match=rf"{name}.toml is damaged or not a TOML file \({reason}\)"):
            load_experiment(str(tmp_path / f"{name}.toml"))
    with pytest.raises(ValueError, match="unknown experiment '/dev/zero'"):
        load_experiment("/dev/zero")


def test_co_teaching_has_the_papers_defaults(load):
    section = load(CO_TAUGHT).co_teaching
    assert (section.margin, section.threshold) == (0.2, 0.5)
    assert (section.soft_margin, section.soft_labels) == ("exponential", "pair")
    assert (section.batch_size, section.learning_rate, section.first_rectified) == (128, 2e-4, 20)
    assert load(CO_TAUGHT, "co_teaching.rectify_from=0").co_teaching.first_rectified == 0


def test_an_ensemble_is_an_experiment_of_its_own(load):
    loaded = load(ENSEMBLE + "weights = [1.0, 3.0]", 'evaluation.split = "test"')
    assert isinstance(loaded, Ensemble)
    assert (loaded.ensemble.weights, loaded.evaluation.split) == ((1.0, 3.0), "test")


def test_a_section_has_its_constructors_options():
    for name in MODELS:
        kind = ModelSection.kind(name)
        assert kind.makes_embeddings == issubclass(MODELS[name], EmbeddingModel), name
        assert kind.attends == MODELS[name].attends, name
        section = kind(name=name).model_dump(exclude={"name"})
        build_model(name, feature_size=4, vocabulary_size=4, **{**section, "embedding_size": 8, "word_size": 4})


def test_every_loss_has_a_section_with_its_numbers():
    assert losses.SECTIONS.keys() <= LOSSES.keys()
    for name, section in losses.SECTIONS.items():
        kind = LOSSES[name]
        parameters = [one for one in inspect.signature(kind.function).parameters.values() if one.name != "pairs"]
        numbers, shared = section(name=name).numbers, {"name", "mask_positives", "companions", "offline_columns"}
        assert numbers.keys() == {parameter.name for parameter in parameters}, name
        assert section.model_fields.keys() - shared == numbers.keys() | section.learning, name
        assert all(one.default in (one.empty, numbers[one.name]) for one in parameters), name
        assert section.has_offline_terms == section(name=name).draws_offline == (kind.offline != "none")


def test_searches_and_strategies_are_those_of_the_config():
    mining = Experiment.model_fields["mining"].annotation.__args__[0]
    for search in ("auto", "onepass", "faiss-flat", "ivf", "hnsw", "faiss:Flat"):
        assert mining(search=search).search == search
        choose_backend(search)
    for search in ("exact", "faiss:"):
        with pytest.raises(
            ValidationError, match=r"search\n.*known are auto, onepass, faiss-flat, .*and faiss:FACTORY"
        ):
            mining(search=search)
    sampling = Experiment.model_fields["sampling"].annotation
    assert set(sampling.model_fields["strategy"].annotation.__args__) == STRATEGIES.keys()


def test_a_margin_of_0_goes_without_a_start_up():
    assert load_experiment("f30k_vsrn", f"{LOSS}='offquin', margin_online=0}}").student.loss.online_margin == 0
