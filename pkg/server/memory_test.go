package server

import "testing"

func TestGCPercent(t *testing.T) {
	for live, want := range map[uint64]int{0: 100, 4 << 20: 100, 8 << 20: 100, 16 << 20: 50, 27 << 20: 30, 1 << 30: 30} {
		if got := gcPercent(live); got != want {
			t.Errorf("a heap of %d MiB is collected when it has grown by %d %%, want %d", live>>20, got, want)
		}
	}
	if liveHeap() == 0 {
		t.Error("the size of the heap is not known")
	}
}
