// Text: tokenizers, incremental decoding, chat templates; needs utf8proc.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attn/text/chat_template.hpp"
#include "attn/text/pre_tokenizer.hpp"
#include "attn/text/stop_filter.hpp"
#include "attn/text/text_stream.hpp"
#include "attn/text/tokenizer.hpp"
#include "attn/text/utf8.hpp"
#include "attn/text/wordpiece.hpp"
