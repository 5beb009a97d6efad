// The file compiled with wide -m flags: it may run only where the processor has what they name.
#define ATTEND attend_wide
#include "attend.inc"
