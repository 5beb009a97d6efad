// Front door of io: includes only. Apart from attn/attn.hpp because it needs nlohmann/json.
#pragma once

// In layer order, the table of contents.
// clang-format off
#include "attn/io/quote.hpp"               // how errors quote what files hold
#include "attn/io/mapped_file.hpp"         // read: a file as bytes
#include "attn/io/atomic_file.hpp"         // write: whole or not at all
#include "attn/io/dtype.hpp"               // element types; F16 and BF16 to float
#include "attn/io/named_tensor.hpp"        // a tensor of run-time type and rank
#include "attn/io/safetensors_layout.hpp"  // where tensors lie
#include "attn/io/safetensors_header.hpp"  // the header, parsed and checked
#include "attn/io/safetensors.hpp"         // SafetensorsFile: open, view, load
#include "attn/io/safetensors_writer.hpp"  // save_safetensors
#include "attn/io/state_dict.hpp"          // a module's parameters by name
// clang-format on
