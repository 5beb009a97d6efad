// The file of a pair with fewer -m flags, which must run on every processor that has these.
#define ATTEND attend_baseline
#include "attend.inc"
