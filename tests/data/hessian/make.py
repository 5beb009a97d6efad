"""Writes golden.safetensors: a Hessian-vector product of nn.TransformerEncoder by PyTorch's double backward.

  python make.py      # needs torch and safetensors

All in double, attention by the math path: parameters `model.*`, the vector `vector.*`, the product `product.*`, input
`x` and `target` of the loss, the mean squared error, and `loss`.
"""
import pathlib

import torch
from safetensors.torch import save_file
from torch.nn.attention import SDPBackend, sdpa_kernel

torch.manual_seed(1)
torch.set_default_dtype(torch.float64)
layer = torch.nn.TransformerEncoderLayer(8, 2, 12, dropout=0, activation="gelu", batch_first=True, norm_first=True)
model = torch.nn.TransformerEncoder(layer, 2, norm=torch.nn.LayerNorm(8), enable_nested_tensor=False)
names, parameters = zip(*model.named_parameters())
for p in parameters:
    torch.nn.init.normal_(p, 0, 0.5)
x, target = torch.randn(2, 5, 8), torch.randn(2, 5, 8)
vector = [torch.randn_like(p) for p in parameters]
mask = torch.nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
with sdpa_kernel(SDPBackend.MATH):
    loss = torch.nn.functional.mse_loss(model(x, mask=mask, is_causal=True), target)
    gradients = torch.autograd.grad(loss, parameters, create_graph=True)
    product = torch.autograd.grad(gradients, parameters, vector)
tensors = {"x": x, "target": target, "loss": loss.detach().reshape(1)}
for kind, values in [("model", parameters), ("vector", vector), ("product", product)]:
    tensors |= {f"{kind}.{name}": value.detach().clone().contiguous() for name, value in zip(names, values)}
save_file(tensors, pathlib.Path(__file__).with_name("golden.safetensors"))
