// The file of a pair with fewer -m flags: it must run on every processor that has those.
#define ATTEND attend_baseline
#include "attend.inc"
