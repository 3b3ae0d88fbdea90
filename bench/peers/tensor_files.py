"""Tensors in safetensors files, with no package but torch: what a bare GPU host has.

The format (https://huggingface.co/docs/safetensors): eight bytes with the length of a JSON header, the header, the
tensors' bytes one after another."""
import json
import os

import torch

TYPES = {"F32": torch.float32, "BF16": torch.bfloat16}


def save(tensors, path):
    """Writes contiguous copies of named tensors, fp32 or bf16 on any device."""
    names = {dtype: name for name, dtype in TYPES.items()}
    header, end = {}, 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    start = bytearray(len(text).to_bytes(8, "little") + text)
    file = torch.from_file(str(path), shared=True, size=len(start) + end, dtype=torch.uint8)
    file[:len(start)] = torch.frombuffer(start, dtype=torch.uint8)
    for name, tensor in tensors.items():
        begin, end = (len(start) + offset for offset in header[name]["data_offsets"])
        file[begin:end] = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)


def load(path):
    """The tensors of a file, in memory of their own."""
    file = torch.from_file(str(path), shared=False, size=os.path.getsize(path), dtype=torch.uint8)
    start = 8 + int.from_bytes(bytes(file[:8].tolist()), "little")
    header = json.loads(bytes(file[8:start].tolist()))
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        begin, end = (start + offset for offset in entry["data_offsets"])
        found[name] = file[begin:end].clone().view(TYPES[entry["dtype"]]).view(entry["shape"])
    return found
