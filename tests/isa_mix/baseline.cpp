// The file compiled with plain flags: it must run on every x86-64 processor.
#define ATTEND attend_baseline
#include "attend.inc"
