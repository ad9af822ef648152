"""Turns messages into numbers, in Python and by operators of ONNX, with the same result."""
import collections, json

import numpy, onnx, onnxruntime, torch
from onnx import TensorProto, compose, helper

# Punctuation that may follow a word. No operator would remove it, so each word has a form
# with each of these endings.
ENDINGS = ["", ".", ",", "?", "!", ";", ":", "...", "??", "!!", "?!"]
OFTEN = 2  # number of messages that must have a word
OPSET = 20

Forms = collections.namedtuple("Forms", "column singles pairs columns")  # column by form; the forms in order


def tokens(message):
    """Splits at each blank, with ASCII letters in lower case, as StringNormalizer and StringSplit do."""
    return "".join(c.lower() if "A" <= c <= "Z" else c for c in message).split(" ")


def bare(token):
    return min((token[: len(token) - len(e)] for e in ENDINGS if token.endswith(e)), key=len)


def forms(messages):
    """The frequent words, and the frequent pairs of words without a comma between them."""
    words, pairs = collections.Counter(), collections.Counter()
    for message in messages:
        mine = tokens(message)
        words.update({bare(t) for t in mine} - {""})
        pairs.update({f"{a} {bare(b)}" for a, b in zip(mine, mine[1:]) if a and bare(b) and a == bare(a)})
    column, lists, number = {}, [], 0
    for seen in words, pairs:
        lists.append([])
        for one in sorted(w for w, n in seen.items() if n >= OFTEN):
            for e in ENDINGS:
                column[one + e] = number
                lists[-1].append(one + e)
            number += 1
    return Forms(column, *lists, number)


def columns(forms, message):
    """The columns of a message's words and pairs; a repeated word gives a repeated column."""
    mine = tokens(message)
    found = [forms.column[f] for f in mine + [f"{a} {b}" for a, b in zip(mine, mine[1:])] if f in forms.column]
    return torch.tensor(found, dtype=torch.long)


def counts(forms, message):
    return torch.bincount(columns(forms, message), minlength=forms.columns).float()


def front(forms):
    """text → StringNormalizer → StringSplit → TfIdfVectorizer → counts."""
    pool = forms.singles + [word for pair in forms.pairs for word in pair.split(" ")]
    nodes = [
        helper.make_node("StringNormalizer", ["text"], ["lower"], case_change_action="LOWER", locale="C"),
        helper.make_node("StringSplit", ["lower"], ["words", "lengths"], delimiter=" "),
        helper.make_node("TfIdfVectorizer", ["words"], ["counted"], mode="TF", min_gram_length=1, max_gram_length=2 if forms.pairs else 1,
                         max_skip_count=0, ngram_counts=[0, len(forms.singles)] if forms.pairs else [0],
                         ngram_indexes=[forms.column[f] for f in forms.singles + forms.pairs], pool_strings=pool),
    ]
    ports = [[helper.make_tensor_value_info("text", TensorProto.STRING, ["messages"])],
             [helper.make_tensor_value_info("counted", TensorProto.FLOAT, ["messages", forms.columns])]]
    return helper.make_graph(nodes, "front", *ports)


def export(served, forms, labels, path):
    """Writes a model whose input is the original messages."""
    batch = torch.export.Dim("messages")
    program = torch.onnx.export(served, (torch.zeros(2, forms.columns),), input_names=["counts"], output_names=["probabilities"], opset_version=OPSET,
                                dynamic_shapes=({0: batch},), dynamo=True, verbose=False, external_data=False)
    back = program.model_proto
    before = helper.make_model(front(forms), opset_imports=[helper.make_opsetid("", OPSET)], ir_version=back.ir_version)
    whole = compose.merge_models(before, back, io_map=[("counted", "counts")])
    helper.set_model_props(whole, {"labels": json.dumps(labels)})
    onnx.checker.check_model(whole, full_check=True)
    onnx.save(whole, path)


def probabilities(path, messages):
    """The probabilities that ONNX Runtime computes, for any model whose input is text."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session.run(["probabilities"], {"text": numpy.array(messages, dtype=object)})[0]


def labels(path):
    return json.loads({p.key: p.value for p in onnx.load(path).metadata_props}["labels"])
