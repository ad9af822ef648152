"""Learns intents with PyTorch, by the same contract as the Go trainer next to it.

One process, or several by torchrun's conventions (RANK, WORLD_SIZE, MASTER_ADDR, ...): gloo
on CPUs, nccl on GPUs. A checkpoint holds the state of a step, and random numbers depend only on
the number of the step. So a run that was interrupted makes the same model as without the break.
"""
import csv, json, os, pathlib, signal, sys, time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import text

EPOCHS = int(os.environ.get("EPOCHS", "60"))
BATCH = int(os.environ.get("BATCH", "32"))  # messages in a step, of all workers together
WIDTH = int(os.environ.get("WIDTH", "128"))
SAVE_SECONDS = float(os.environ.get("SAVE_SECONDS", "15"))
SEED, RATE, DECAY, DROPOUT = 1, 5e-3, 1e-2, 0.5

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if GPU else torch.device("cpu")
leaving = []  # the received signals


class Classifier(nn.Module):
    """Sums a vector for each word, and predicts the intent from the sum."""

    def __init__(self, columns, labels):
        super().__init__()
        self.bag = nn.EmbeddingBag(columns, WIDTH, mode="sum")
        nn.init.normal_(self.bag.weight, std=0.05)  # with larger values, a rare word would dominate the others
        self.head = nn.Sequential(nn.ReLU(), nn.Dropout(DROPOUT), nn.Linear(WIDTH, labels))

    def forward(self, columns, offsets):
        return self.head(self.bag(columns, offsets))


class Served(nn.Module):
    """The same model with counts of words as its input, as in the ONNX file."""

    def __init__(self, model):
        super().__init__()
        self.embed = nn.Linear(model.bag.num_embeddings, WIDTH, bias=False)
        self.embed.weight.data = model.bag.weight.data.T.contiguous()
        self.head = model.head

    def forward(self, counts):
        return torch.softmax(self.head(self.embed(counts)), dim=1)


def say(*words):
    if RANK == 0:
        print(*words, flush=True)


def load(folder):
    """The messages for training and those for measuring, as pairs of text and intent."""
    learn, held = [], []
    for path in sorted(pathlib.Path(folder).rglob("*.csv")):
        with open(path, newline="", encoding="utf-8-sig") as f:
            rows = [(row["text"], row["intent"]) for row in csv.DictReader(f)]
        (held if path.name.startswith("held-out") else learn).extend(rows)
    if not learn or not held:
        sys.exit(f"there are {len(learn)} messages to learn from and {len(held)} in files held-out*.csv: both are needed")
    return learn, held


def collate(batch):
    """One flat tensor with messages of all lengths, and the begin of each."""
    columns, labels = zip(*batch)
    offsets = torch.tensor([0] + [len(c) for c in columns[:-1]]).cumsum(0)
    return torch.cat(columns), offsets, torch.tensor(labels)


def plan(examples):
    """The batches of this worker, in the order of the steps. Every epoch has a different order, which
    all workers compute. Each worker takes every WORLD-th message of a batch."""
    for epoch in range(EPOCHS):
        order = torch.randperm(examples, generator=torch.Generator().manual_seed(SEED + epoch)).tolist()
        order += order[: -len(order) % WORLD]  # the workers' shares have the same size
        size = max(BATCH // WORLD, 1) * WORLD
        for at in range(0, len(order), size):
            yield order[at + RANK : at + size : WORLD]


def save(path, state):
    """Writes a file completely or not at all, even if the process is killed."""
    temporary = path.with_name(path.name + ".new")
    torch.save(state, temporary)
    os.replace(temporary, path)


def asked_to_leave():
    """Whether any worker got SIGTERM. All exit at the same step, because one alone would block the others."""
    if WORLD == 1:
        return bool(leaving)
    flag = torch.tensor([len(leaving)], device=DEVICE)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())


def part():
    """Ends the connections between the workers. The first to close them would end the others with an error."""
    if WORLD > 1:
        dist.barrier()
        dist.destroy_process_group()


def train(model, examples, checkpoint, out):
    """Trains the model, from the checkpoint on if there is one of the same examples."""
    steps = list(plan(len(examples)))
    every = len(steps) // EPOCHS
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY, fused=GPU)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=RATE, total_steps=len(steps))
    of = [len(examples), len(steps), WORLD, *[list(p.shape) for p in model.parameters()]]
    begin, sums = 0, [0.0, 0]
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location=DEVICE, weights_only=True)
        if saved["of"] == of:
            begin, sums = saved["step"], saved["sums"]
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            schedule.load_state_dict(saved["schedule"])
            say(f"goes on from step {begin}")
    worker = DistributedDataParallel(model, device_ids=[DEVICE.index] if GPU else None) if WORLD > 1 else model
    loader = torch.utils.data.DataLoader(examples, batch_sampler=steps[begin:], collate_fn=collate, pin_memory=GPU,
                                         num_workers=2 if GPU else 0, persistent_workers=GPU)
    wrong = nn.CrossEntropyLoss(label_smoothing=0.05)
    worker.train()
    saved_at = began = time.monotonic()
    with open(out / "metrics.jsonl" if RANK == 0 else os.devnull, "a", encoding="utf-8") as curve:
        for step, batch in enumerate(loader, begin + 1):
            columns, offsets, labels = (t.to(DEVICE, non_blocking=True) for t in batch)
            torch.manual_seed(SEED + step * WORLD + RANK)  # for the dropout
            with torch.autocast(DEVICE.type, dtype=torch.bfloat16, enabled=GPU):
                loss = wrong(worker(columns, offsets), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            sums[0] += loss.detach()  # stays on the GPU, because reading it would wait for the GPU
            sums[1] += 1
            if step % every == 0:
                speed = (step - begin) * BATCH / (time.monotonic() - began)
                print(json.dumps({"step": step, "total": len(steps), "loss": float(sums[0]) / sums[1], "perSecond": round(speed)}), file=curve, flush=True)
                sums = [0.0, 0]
            left = asked_to_leave()
            if RANK == 0 and (left or time.monotonic() - saved_at > SAVE_SECONDS):
                saved_at = time.monotonic()
                save(checkpoint, {"of": of, "step": step, "sums": [float(sums[0]), sums[1]], "model": model.state_dict(),
                                  "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()})
            if left:
                part()
                sys.exit(f"asked to leave at step {step}; the checkpoint has it")
    say(f"learned for {time.monotonic() - began:.2f} s on {torch.cuda.get_device_name(DEVICE) if GPU else 'CPU'}, {WORLD} workers")


def measure(model, forms, labels, held, out, log):
    """Writes the model, and the predictions of it and of the champion for the held-out messages."""
    path = out / "model.onnx"
    served = Served(model.cpu()).eval()
    text.export(served, forms, labels, path)
    mine = text.probabilities(path, [t for t, _ in held])
    counts = torch.stack([text.counts(forms, t) for t, _ in held])
    with torch.no_grad():
        drift = (served(counts) - torch.from_numpy(mine)).abs().max().item()
    if drift > 1e-4:
        sys.exit(f"the exported model is off by {drift} from the one that was learned")
    columns = {"truth": [intent for _, intent in held], "predicted": [labels[p.argmax()] for p in mine]}
    right = lambda name: sum(a == b for a, b in zip(columns["truth"], columns[name])) / len(held)
    told = {"accuracy": right("predicted"), "heldOut": len(held), "exportDrift": drift}
    champion = pathlib.Path(os.environ.get("TIDEMILL_CHAMPION") or "/nowhere") / "model.onnx"
    if champion.exists():
        try:
            theirs = text.labels(champion)
            columns["champion"] = [theirs[p.argmax()] for p in text.probabilities(champion, [t for t, _ in held])]
            told["champion"] = {"accuracy": right("champion")}
        except Exception as e:  # a champion of another trainer; without a measurement the gate refuses the new version
            log(f"the champion is not measured: {e}")
    with open(out / "predictions.csv", "w", newline="", encoding="utf-8") as f:
        csv.writer(f).writerows([columns, *zip(*columns.values())])
    (out / "metrics.json").write_text(json.dumps(told, indent=2), encoding="utf-8")
    (out / "model.yaml").write_text(f"input: text\noutput: probabilities\nlabels: {json.dumps(labels)}\n", encoding="utf-8")
    log("accuracy", ", ".join(f"{name} {right(name):.3f}" for name in list(columns)[1:]), f"on {len(held)} messages")


def main():
    signal.signal(signal.SIGTERM, lambda number, frame: leaving.append(number))
    torch.manual_seed(SEED)
    torch.set_float32_matmul_precision("high")
    if GPU:
        torch.cuda.set_device(DEVICE)
    if WORLD > 1:
        dist.init_process_group("nccl" if GPU else "gloo")
    out = pathlib.Path(os.environ["TIDEMILL_OUT"])
    checkpoint = pathlib.Path(os.environ.get("TIDEMILL_CHECKPOINT") or out) / "checkpoint.pt"
    learn, held = load(os.environ["TIDEMILL_IN"])
    forms, labels = text.forms([t for t, _ in learn]), sorted({intent for _, intent in learn})
    say(f"{len(learn)} messages to learn from, {len(held)} to be measured by: {forms.columns} words and pairs, {len(labels)} intents")
    model = Classifier(forms.columns, len(labels)).to(DEVICE)
    train(model, [(text.columns(forms, t), labels.index(intent)) for t, intent in learn], checkpoint, out)
    part()
    if RANK == 0:
        measure(model, forms, labels, held, out, say)


if __name__ == "__main__":
    main()
