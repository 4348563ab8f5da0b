"""open_clip's training on a table's negatives: its options, its models and its loop, on any number of processes.

torchrun --nproc-per-node 2 open_clip_train.py --table table --train-data data/mine --model ViT-B-32 --batch-size 64
"""

import argparse
import logging

import numpy as np
import torch
from open_clip import create_model_and_transforms, get_tokenizer
from open_clip_train.distributed import init_distributed_device, is_master
from open_clip_train.params import parse_args
from open_clip_train.scheduler import cosine_lr
from open_clip_train.train import train_one_epoch

import aoq
from aoq.integrations.open_clip import (
    OfflineClipLoss,
    OfflineQuintupletLoss,
    OfflineSigLipLoss,
    TableData,
    carry_rows,
)

parser = argparse.ArgumentParser(add_help=False)
parser.add_argument("--table", required=True)  # made by `aoq mine` or an experiment
parser.add_argument("--negatives", default="offline", help="offline, quintuplet, none, or a number")
parser.add_argument("--batches", default="random", choices=["random", "mined"])
parser.add_argument("--weights", default="open_clip.pt")  # the output
ours, theirs = parser.parse_known_args()
args = parse_args(theirs)  # --train-data is a folder made by `aoq prepare`
args.distill = args.wandb = False  # set by open_clip's main
negatives = int(ours.negatives) if ours.negatives.isdecimal() else {"none": None}.get(ours.negatives, ours.negatives)
logging.basicConfig(level=logging.INFO, format="%(message)s")

device = init_distributed_device(args)
torch.manual_seed(args.seed)
start = {"init_logit_scale": np.log(10), "init_logit_bias": -10} if args.siglip else {}
model, preprocess, _ = create_model_and_transforms(
    args.model,
    args.pretrained,
    precision=args.precision,
    device=device,
    aug_cfg=args.aug_cfg,
    output_dict=True,
    **start,
)
trained = carry_rows(model)
if args.distributed:
    on = [device] if device.type == "cuda" else None
    trained = torch.nn.parallel.DistributedDataParallel(model, device_ids=on)

table = aoq.read_table(ours.table)
tokenizer = get_tokenizer(args.model)
data = TableData.of_folder(table, args.train_data, preprocess=preprocess, tokenizer=tokenizer)
train = data.loader(
    args.batch_size,
    negatives=negatives,
    batches="mined" if ours.batches == "mined" else None,
    seed=args.seed,
    workers=args.workers,
)
if ours.negatives == "quintuplet":
    loss = OfflineQuintupletLoss(table)
else:
    loss = (OfflineSigLipLoss if args.siglip else OfflineClipLoss)(table, negatives=negatives)
loss = loss.to(device)

decayed = [weights for weights in model.parameters() if weights.ndim > 1]
others = [weights for weights in model.parameters() if weights.ndim <= 1]
groups = [{"params": others, "weight_decay": 0.0}, {"params": decayed, "weight_decay": args.wd}]
optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(args.beta1, args.beta2), eps=args.eps)
scaler = torch.amp.GradScaler(device.type) if args.precision == "amp" else None
steps = train.dataloader.num_batches // args.accum_freq * args.epochs
scheduler = cosine_lr(optimizer, args.lr, args.warmup, steps)
torch.manual_seed(args.seed + args.rank)  # augmentations differ by process
for epoch in range(args.epochs):
    train_one_epoch(trained, {"train": train}, loss, epoch, optimizer, scaler, scheduler, None, args)
if is_master(args):
    torch.save(model.state_dict(), ours.weights)
if args.distributed:
    torch.distributed.destroy_process_group()
