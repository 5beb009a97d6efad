// The file compiled with the fewer -m flags of a pair, mostly none: it must run on every processor that has those.
#define ATTEND attend_baseline
#include "attend.inc"
