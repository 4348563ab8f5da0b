"""What cannot be done is refused in a sentence that says what to change, and leaves nothing behind."""

import os
import shlex
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from aoq.pipeline.cli import main
from aoq.pipeline.data.noise import write_clean_pairs
from tests.cli.conftest import CORPUS, EACH, IMAGES, NAMED, TINY, TWIN, run, write_files

RUNS = {
    "i2t.trec:1: 5 fields where a TREC run has 6": "0 Q0 1 1 0.5\n",
    "i2t.trec:1: the score 'high' is not a finite number": "0 Q0 1 1 high x\n",
    "is not a finite number, or too large for float32": "0 Q0 1 1 1e300 x\n",
    "name image 0 and caption 999999999, and have 2 lists": "0 Q0 999999999 1 1 x\n",
    "i2t.trec:1: 'a' is not a row number; give --image-ids": "a Q0 1 1 0.5 x\n",
    "i2t.trec:3: this query has earlier lines too": "0 Q0 2 1 3 x\n1 Q0 2 1 3 x\n0 Q0 3 2 1 x\n",
    "i2t.trec: row 0 lists a candidate twice": "0 Q0 2 1 3 x\n0 Q0 2 1 3 x\n1 Q0 0 1 3 x\n",
    "i2t.trec holds no line": "",
}
LISTS = {
    "i2t_x.npy holds float64 of shape (15, 3); official lists are integers": np.zeros((IMAGES, 3)),
    "i2t_x.npy: row 0 lists 30, but there are candidates 0 to 29": np.full((IMAGES, 1), IMAGES * EACH),
    "--per-image 2 makes 32 captions of 16 images, but there are 30": np.zeros((IMAGES + 1, 1), np.int32),
    "i2t_x.npy is damaged or not a .npy file of numbers (it holds Python objects)": np.array([[None]]),
}
ROWS = np.random.default_rng(0).normal(size=(IMAGES, 7)).astype(np.float32)
VECTORS = {
    "row 4 of 0.npy is not finite": np.where(np.arange(IMAGES)[:, None] == 4, np.nan, ROWS),
    "row 4 of 1.npy is zero": np.where(np.arange(IMAGES)[:, None] == 4, 0, ROWS),
    "the two sides have 5 and 7 dimensions": ROWS[:, :5],
    "3.npy is empty: 0 vectors of 7 dimensions": ROWS[:0],
    "4.npy holds int64 of shape (2, 3); a row of floats": np.arange(6).reshape(2, 3),
}
MINED = "--per-image 2 --h-captions 6 --h-images 4"
TEXTS = "--captions captions.txt --image-ids ids.txt"
WORDS = {
    "TINY": str(TINY),
    "LONG": "x" * 250,
    "SURROGATE": "p\udcff",
    "NAMES": TEXTS,
    "TEXTS": f"{TEXTS} --image-texts described.txt",
    "PICTURES": f"{TEXTS} --image-root pictures",
    "PAIRED": f"images.npy captions.npy {MINED}",
    "I2T": "--direction i2t",
    "T2I": "--direction t2i",
    "CORPUS_TEXTS": shlex.join(("--image-texts", "query.txt", "--captions", "document.txt", *NAMED)),
    "ITEM_TEXTS": "--image-texts item.txt --image-ids item_ids.txt",
    "CORPUS": shlex.join(CORPUS),
    "TWIN": shlex.join(TWIN),
    "D": "--h-captions 6",
    "E": "--h-images 4",
    "CLEAN": "--doubtful-pair 0.5 --pair-probabilities",
}
CASES = """
export corpus out --format triplet --image-texts query.txt --direction i2t :: triplet needs the captions' texts;
export corpus out --format triplet $CORPUS_TEXTS :: choose --direction i2t
export corpus out --format triplet $CORPUS_TEXTS --direction i2t --caption-root . :: a row is exported as its
export corpus out --format trec --caption-root . :: trec exports only ids; leave out --c
export corpus out --format negclip --image-root . --caption-root . :: negclip needs captions as texts; give
export corpus out --format colpali $T2I --image-texts query.txt --caption-root . :: queries as text, but those of t2i
export set out --format triplet $ITEM_TEXTS --direction t2i :: both directions of one set have the same lists
export set out --format triplet $ITEM_TEXTS --captions item.txt :: this table holds one set, described by --image-
export set out --format negclip $ITEM_TEXTS :: negclip joins images and captions, but this table holds one set
export set out --format triplet --data . :: --data has images and captions, but the table has one set
export set out --format trec --image-ids query_ids.txt :: 12 item ids are given for 25 rows
mine $D item.npy out --per-image 2 :: IMAGES alone are one set; --per-image and --caption-ids are for IMAGES
mine item.npy out --unpaired --h-images 3 :: one set has one list per item; set its length with --h-c
mine $D item.npy out $TWIN --sides a b :: --sides names two sides, and IMAGES alone are one set
mine $D item.npy out :: give the true pairs
mine images.npy captions.npy . --per-image 2 :: . exists already
mine $D $E query.npy document.npy --pairs pairs.qrels :: OUTPUT is missing after document.npy
mine $D $E query.npy document.npy item.npy out --unpaired :: item.npy is one too many
mine $D $E query.npy document.npy out --unpaired --min-grade 2 :: --min-grade needs --pairs FILE with grades
mine $D $E item.npy item.npy out --unpaired :: IMAGES and CAPTIONS are the same vectors, and row 0 is not paired
mine $D $E query.npy document.npy out --pairs pairs.qrels --image-ids item_ids.txt :: 25 image ids are given for 12
batches table out --batch-size 8 --ranks 3 :: '3' is not START:STOP, such as 30:130
batches table out --batch-size 8 --ranks 5:5 :: 0 <= START < STOP; got 5:5
batches table out --batch-size 8 --ranks 12:20 :: start beyond the table's i2t lists, which have 6
batches table out --batch-size 8 --write-shards :: give --data, or --image-root and --texts
browse set :: of one set has no two sides to browse
browse table --data nowhere --texts short.txt :: --data has captions and image ids; leave out --texts
browse table --image-root nowhere :: nowhere is not a folder; give --image-root
browse table --texts short.txt :: 2 texts are given for 30 rows
diff table table --depth 999 :: depth is 999, but the shorter i2t lists have
estimate :: give IMAGES and CAPTIONS, or --experiment NAME
estimate $PAIRED --experiment demo :: give IMAGES and CAPTIONS, or
estimate --experiment $TINY --h-images 60 :: an experiment has its own, in its [mining] or in [engine] of luigi.cfg
estimate $PAIRED --override seed=1 :: --override is for an --experiment.
estimate $PAIRED --search best :: there is no search 'best'
estimate images.npy captions.npy --per-image 2 --h-captions 29 :: lower it to at most 28
estimate --experiment ./fused.toml :: 'fused' mines and trains nothing; estimate
explain $TINY@seed=1 hard_negatives --override seed=2 :: give all of them in one place
export table out --format csv :: there is no format 'csv'; formats are triplet, n-tuple,
export table out --format triplet :: choose --direction i2t (lists of images) or t2i (lists of captions)
export table out --format aoq --direction i2t :: aoq has both directions
export table out --format flagembedding $I2T --scores $TEXTS :: an anchor has up to 2 positives, but the table keeps on
export table out --format flagembedding $I2T $TEXTS --scores --vectors images.npy lost.npy :: lost.npy does not exist
export table out --format tevatron --direction i2t --scores :: tevatron cannot hold scores of positives
export table out --format triplet $T2I --vectors images.npy captions.npy :: ask for them with --scores
export table out --format triplet $T2I :: triplet needs the captions' texts; give --texts FILE
export table out --format triplet $T2I --captions ids.txt --image-texts described.txt :: 15 captions are given for
export table out --format trec --image-ids captions.txt :: 30 image ids are given for
export table out --format trec --image-ids same.txt :: images 3 and 4 both have the id 'x'
export table out --format n-tuple $T2I --num-negatives 5 $TEXTS :: 5 negatives are requested, but the t2i lists of t
export table out --format triplet $T2I --data d $TEXTS :: leave out --texts and --image-ids
export table out --format trec --data d --image-ids ids.txt --caption-root c :: leave out --image-ids and --caption-root
export table out --format triplet $T2I $NAMES :: triplet needs the images' pictures; give --image-root FOLDER
export table out --format ms-swift $T2I $NAMES :: its file (or --image-texts FILE, a text for each image).
export table out --format pylate $T2I $NAMES :: pylate reads only texts, and image ids are not texts; give --im
export table out --format pylate $T2I $PICTURES :: pylate reads only texts; leave out --image-root, or choose triplet
status table :: table is a table's folder, and `aoq status` takes an experiment; name the one that made it
export table out --format trec --image-root pictures :: trec exports only ids; leave out --image-root, or
export table out --format aoq --image-texts described.txt :: aoq has no place for texts of images
export table out --format triplet $PICTURES $T2I --image-texts described.txt :: leave out --image-root or --image-texts
export table out --format triplet $T2I $PICTURES --pack :: --pack puts the pictures of --image-root into
export table out --format ids $T2I $TEXTS --pack :: an export of ids, tevatron, colpali, nemo; leave it out
export table out --format colpali --direction i2t $PICTURES :: reads its queries as text, but those of i2t are images
export table out --format ids $T2I --captions captions.txt --image-root . :: 15 of 15 images have no file below ., the f
export table out --format triplet $T2I $NAMES --image-root broken :: 3.jpg is not a picture (it is empty); replace it
export table out --format triplet $T2I $NAMES --image-ids part.txt --image-root bare :: 0.jpg.part does not end like
export table out --format ids $T2I $NAMES --image-texts captions.txt :: 30 texts of images are given for
export table captions.txt --format triplet $T2I $TEXTS :: captions.txt already exists
export lost out --format triplet $T2I $TEXTS :: positives.parquet does not exist
export unpaired out --format triplet $T2I $TEXTS :: unpaired has no positives, which this format needs
import-table x.npy out --unpaired :: is not a file of lists; name the images' i2t_NAME.npy
import-table i2t.npy out --unpaired :: i2t.npy is not a file
import-table i2t.npy out :: give the true pairs: --pairs FILE, --per-image K, --data FOLDER or --unpaired
import-checkpoint lost.tar out :: lost.tar does not exist; give the path
import-checkpoint page.tar out :: is a web page
import-checkpoint hostile.tar out :: was refused
import-table whole/i2t_x.npy back --per-image 2 --vectors images.npy few.npy :: 15 images and 2 captions, but lists
inspct :: there is no command 'inspct'; did you mean 'inspect'
inspect $TINY --image 1 --artifact-root /nowhere :: tiny.toml --round hard_negatives --artifact-root /nowhere
inspect table --image 15 :: rows are 0 to 14
inspect table --image nowhere.jpg :: neither an id nor a row
inspect table :: name one anchor
inspect table --image 0 --texts short.txt :: 2 texts are given
inspect table --image 0 --only left :: --only needs a view
inspect table --image 0 --view view --only same_text :: the view does not use this rule
audit view :: view is a view made by `aoq screen`; name the table
stats view :: view is a view made by `aoq screen`; name the table
mine images.npy hf:some/set::clip --per-image 2 :: OUTPUT is missing after hf:some/set::clip
mine nowhere.npy captions.npy out --per-image 2 :: nowhere.npy does not exist
mine images.npy captions.npy table --per-image 2 :: table exists already
mine images.npy captions.npy nowhere/table --per-image 2 :: nowhere does not exist; make it: mkdir -p
mine $PAIRED out --search faiss:IVF4,Flat|nprobe=99999999999 :: parameters are NAME=N, with N from 0 to
mine $D $E captions.npy images.npy out --per-image 2 :: are IMAGES and CAPTIONS swapped?
mine $D $E images.npy captions.npy out --labels labels.txt :: give --labels for each side: once for one set, twice
mine $D $E images.npy captions.npy out --labels labels.txt --labels labels.txt :: 30 labels, but there are 15 images
mine $PAIRED out --labels labels.txt --labels labels.txt :: give one of --per-image K and --labels FILE
mine $PAIRED out --identity short.npy :: short.npy holds float32 of shape
mine 1e19.npy captions.npy out --metric dot --per-image 2 :: the largest norm of the images is
mine 3e37.npy captions.npy out --metric dot --per-image 2 :: divide all images by a common factor
publish set out --caption-ids item_ids.txt :: the table holds one set, whose ids are --image-ids
publish table out --image-ids captions.txt :: 30 image ids are given for 15 rows
publish table out --view table :: table/manifest.json is damaged or not a view's manifest
publish other out --view view :: view is a view of another table
publish table $LONG :: choose a name of at most 240 bytes, as temporary files need a longer one
publish table $SURROGATE :: has a name that is not UTF-8, which Arrow cannot write; choose another
publish table view :: view already exists; remove it or choose another name
publish changed out :: changed/i2t.parquet holds lists that do not match their sha256
publish uncertified out :: does not pass `aoq audit`: i2t.certificates.parquet: its anchors are not
report ' ; ' :: a report is about runs
report demmo :: unknown experiment 'demmo'
report demo demo :: is listed twice
report ./fused.toml :: makes a table and trains nothing
report $TINY -o nowhere/page.html :: does not exist; make it
results --study demo --arm of :: has no --arm 'of'; it has ['
results --study demo --model x :: has no --model 'x'
results --study demo --override seed=1 :: --override is for an EXPERIMENT
results demo --arm x :: --arm are for a --study
results demo --study demo :: an EXPERIMENT, or a --study
run demmo :: error: unknown experiment 'demmo'; did you mean 'demo'? `aoq list` shows all.
run $TINY --round contrl :: not 'contrl'; did you mean 'control'?
run $TINY --workers 0 :: '--workers': 0 is not in the range
screen table out :: error: no rule is given; give at least one of --range-min,
screen unpaired out --match-prior 0.1 :: but the table has 0 and
screen table out --near-text 0.5 :: the rule near_text needs the captions' texts (--texts, in Python texts=)
screen table out --near-text 0.5 --texts short.txt :: 2 texts are given for 30 rows
screen table out --caption-similarity 0.5 --captions short.npy :: 2 vectors of captions are given
screen table out --range-min 6 :: the rules drop all 210 negatives, so every list would be empty; loosen them, or
screen table out --min-score nan :: min_score: Input should be a finite number
mine images.npy captions.npy out --labels one.txt --labels two.txt :: add items that are not all paired
screen table out --positives none.csv :: none.csv does not exist
screen table out --positives named.csv :: it needs rows, whole numbers from 0 and not ids, in the columns caption_id
screen table out --judgements far.csv :: far.csv: pair 0 names caption '300', but there are captions 0 to 29
screen table out --alike-owners 0.5 :: the rule alike_owners needs the images' vectors (--image-vectors, in
screen table out $CLEAN none.parquet :: none.parquet does not exist; an
screen table out $CLEAN short.parquet :: belongs to other captions: it has 2 rows
screen table out $CLEAN high.parquet :: some probabilities are not between 0 and 1
screen table out $CLEAN short.npy :: short.npy is damaged or not a Parquet file
statu :: there is no command 'statu'; did you mean 'status'
study demmo :: error: unknown study 'demmo'; did you mean 'demo'? `aoq list` shows all.
to-judge set out.csv --texts item.txt --image-ids item_ids.txt :: give --texts or --image-ids, not both
to-judge demmo out.csv :: demmo is neither an experiment nor a table's folder with manifest.json; did you mean 'demo'?
to-judge table pairs.xlsx :: pairs.xlsx should be a file that ends in one of .parquet, .csv, .tsv, .jsonl
to-judge table pairs.csv --data . --texts short.txt :: leave out --texts
to-judge table pairs.csv --view empty :: the view suspects none of the first 10 of each list
"""
READ = [
    *((f"import-table run{n}/i2t.trec back --per-image 2", message) for n, message in enumerate(RUNS)),
    *((f"import-table lists{n}/i2t_x.npy back --per-image 2", message) for n, message in enumerate(LISTS)),
    *((f"mine {n}.npy captions.npy out --per-image 2", message) for n, message in enumerate(VECTORS)),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Vectors, tables and texts, whole and broken; commands that are refused leave it as it is."""
    folder = tmp_path_factory.mktemp("refused")
    before = Path.cwd()
    os.chdir(folder)
    write_files()
    for name, texts in (("short", ["one", "two"]), ("same", ["x" if n in (3, 4) else str(n) for n in range(IMAGES)])):
        Path(f"{name}.txt").write_text("".join(f"{text}\n" for text in texts))
    Path("labels.txt").write_text("".join(f"{row % 5}\n" for row in range(IMAGES * EACH)))
    Path("part.txt").write_text("".join(f"{row}.jpg.part\n" for row in range(IMAGES)))
    shutil.copytree("pictures", "broken")
    Path("broken/3.jpg").write_bytes(b"")
    shutil.copytree("pictures", "bare")
    for picture in [*Path("bare").iterdir()]:
        picture.rename(f"{picture}.part")
    Path("page.tar").write_text("<html>")
    Path("hostile.tar").write_bytes(b"cos\nmkdir\n(S'ran'\ntR.")
    Path("named.csv").write_text("caption_id,image_id\nc1,i1\n")
    for name, count in (("one", IMAGES), ("two", IMAGES * EACH)):
        Path(f"{name}.txt").write_text("same\n" * count)
    Path("far.csv").write_text("caption_id,image_id,probability\n300,0,1\n")
    Path("fused.toml").write_text(
        f'fusion = {{members = ["{TINY}", "{TINY}@seed=1"], method = "rank", h_captions = 20, h_images = 8}}'
    )
    np.save("short.npy", np.eye(2, dtype=np.float32))
    for factor in ("1e19", "3e37"):
        unit = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)
        np.save(f"{factor}.npy", unit * np.float32(factor))
    write_clean_pairs(Path("short.parquet"), np.ones(2, np.float32))
    write_clean_pairs(Path("high.parquet"), np.full(IMAGES * EACH, 1.5, np.float32))
    for view, rule in (("view", "--mutual-rank"), ("empty", "--range-min")):
        run("screen", "table", view, rule, 2 if view == "view" else 1)
    for name in ("other", "changed", "uncertified", "unpaired", "lost"):
        pairs = ("--unpaired",) if name == "unpaired" else ("--per-image", EACH)
        run("mine", "images.npy", "captions.npy", name, *pairs, "--h-captions", 5, "--h-images", 4)
    lists = pq.read_table("changed/i2t.parquet")
    scores = lists["positive_score"].combine_chunks()[::-1]
    pq.write_table(lists.set_column(3, "positive_score", scores), "changed/i2t.parquet")
    bounds = "uncertified/i2t.certificates.parquet"
    pq.write_table(pq.read_table(bounds).slice(0, 0), bounds)
    Path("lost/positives.parquet").unlink()
    for number, lines in enumerate(RUNS.values()):
        (folder / f"run{number}").mkdir()
        (folder / f"run{number}" / "i2t.trec").write_text(lines)
        (folder / f"run{number}" / "t2i.trec").write_text("3 Q0 0 1 0.5 x\n")
    np.save("few.npy", ROWS[:2])
    whole = {"whole": np.full((IMAGES, 1), 5)}
    for name, array in (whole | {f"lists{number}": array for number, array in enumerate(LISTS.values())}).items():
        (folder / name).mkdir()
        np.save(folder / name / "i2t_x.npy", array)
        np.save(folder / name / "t2i_x.npy", np.zeros((IMAGES * EACH, 1), np.int32))
    for number, array in enumerate(VECTORS.values()):
        np.save(f"{number}.npy", array)
    os.chdir(before)
    return folder


@pytest.mark.parametrize(("command", "message"), [*(line.split(" :: ") for line in CASES.strip().splitlines()), *READ])
def test_it_is_refused(world, monkeypatch, command, message):
    monkeypatch.chdir(world)
    for name, words in WORDS.items():
        command = command.replace(f"${name}", words)
    before = sorted(world.rglob("*"))
    shown = CliRunner().invoke(main, shlex.split(command))
    assert shown.exit_code in (1, 2)
    assert message in shown.stderr
    assert shown.exit_code == 2 or shown.stderr.splitlines()[-1].startswith("error: ")
    assert sorted(world.rglob("*")) == before
