// Files: safetensors, GGUF, .npy, config.json; needs nlohmann/json.
// SPDX-License-Identifier: Apache-2.0
#pragma once

// In layer order, the table of contents.
// clang-format off
#include "attn/io/quote.hpp"               // how errors quote what files hold
#include "attn/io/mapped_file.hpp"         // read: a file as bytes
#include "attn/io/atomic_file.hpp"         // write: whole or not at all
#include "attn/io/named_tensor.hpp"        // a tensor of run-time type and rank
#include "attn/io/stored_elements.hpp"     // elements as files hold them
#include "attn/io/safetensors/layout.hpp"  // where tensors lie
#include "attn/io/safetensors/header.hpp"  // the header, parsed and checked
#include "attn/io/safetensors.hpp"         // SafetensorsFile: open, view, load
#include "attn/io/safetensors/writer.hpp"  // save_safetensors
#include "attn/io/base64.hpp"              // bytes that JSON files spell in letters
#include "attn/io/config_file.hpp"         // settings by name in a JSON file
#include "attn/io/safetensors/folder.hpp"  // one file or several with an index
#include "attn/io/rename.hpp"              // rename_by: other names in files
#include "attn/io/state_dict.hpp"          // a module's parameters by name
#include "attn/io/numpy/npy_header.hpp"          // the header of numpy's files
#include "attn/io/npy.hpp"                 // NpyArray: open, view, load; save_npy
#include "attn/io/gguf/types.hpp"          // the types of GGUF tensors, and their blocks
#include "attn/io/gguf/blocks.hpp"         // blocks to float
#include "attn/io/gguf/quantize.hpp"       // float to blocks
#include "attn/io/gguf/header.hpp"         // metadata and tensor positions, checked
#include "attn/io/gguf.hpp"                // GgufFile: open, view, load
#include "attn/io/gguf/writer.hpp"         // save_gguf
// clang-format on
