# What Doxygen reads instead of a header: the comment on top of it documents the file, lines that are set in are code, and
# macros that only kernels need are left out.
# The rows of a table that only the compiler puts together.
/^#include "attn\/simd\/targets.inc"/ { next; }
/^#define ATTN_(KERNEL|FUNCTOR|CONCAT)/ { skipping = 1; }
skipping { skipping = /\\$/; next; }
!below && /^\/\// { sub(/^\/\//, "///"); }
/^ *\/\/\/   +[^ ]/ {
  if (!code) print "///\n/// ```cpp";
  code = 1;
  sub(/\/\/\/   /, "/// ");
  print;
  next;
}
code { print "/// ```"; code = 0; }
!below && /^#pragma once/ { below = 1; print "/// \\file\n"; }
{ print; }
