// The file compiled with wide -m flags, which may run only on processors that have them.
#define ATTEND attend_wide
#include "attend.inc"
