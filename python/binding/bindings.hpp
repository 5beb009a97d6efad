// The parts of the module attn._attn, one function and one file each.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace attn_python {

void bind_attention(nanobind::module_& m);
void bind_functions(nanobind::module_& m);
void bind_multi_head_attention(nanobind::module_& m);
void bind_files(nanobind::module_& m);
void bind_sentence_encoder(nanobind::module_& m);
void bind_language_model(nanobind::module_& m);

}  // namespace attn_python
