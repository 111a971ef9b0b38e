package server

import "testing"

func TestGCPercent(t *testing.T) {
	for live, want := range map[uint64]int{0: 100, 4 << 20: 100, 8 << 20: 100, 16 << 20: 50, 32 << 20: 25, 1 << 30: 25} {
		if got := gcPercent(live); got != want {
			t.Errorf("a heap of %d MiB is collected when it has grown by %d %%, want %d", live>>20, got, want)
		}
	}
	if live, _ := heap(); live == 0 {
		t.Error("the size of the heap is not known")
	}
}
