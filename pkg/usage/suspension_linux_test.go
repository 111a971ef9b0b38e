package usage

import "testing"

func TestReadClock(t *testing.T) {
	// In this order, waiting between the readings cannot make the second one smaller.
	monotonic := readClock(clockMonotonic)
	boottime := readClock(clockBoottime)
	if monotonic <= 0 || boottime < monotonic {
		t.Errorf("got %v since the start of the machine, of which it ran %v", boottime, monotonic)
	}
	if got := readClock(1000); got != 0 {
		t.Errorf("a clock that the kernel does not have: got %v, want 0", got)
	}
}
