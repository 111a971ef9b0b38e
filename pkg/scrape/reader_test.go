package scrape

import (
	"math/rand/v2"
	"testing"
	"time"
)

// newRandom returns a source of random numbers that is the same in each run.
func newRandom(t *testing.T) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(1, 2))
}

func TestPeriods(t *testing.T) {
	const s = time.Second
	for _, tc := range []struct {
		name  string
		reads []time.Duration
		want  time.Duration
	}{
		{"one read", []time.Duration{7 * s}, 0},
		{"two reads", []time.Duration{7 * s, 22 * s}, 15 * s},
		{"several reads at once", []time.Duration{7 * s, 7 * s, 7*s + 900*time.Millisecond, 22 * s, 22*s + 1}, 15 * s},
		{"too often", []time.Duration{0, 1500 * time.Millisecond}, 0},
		{"too rare", []time.Duration{0, 121 * s}, 0},
		{"a missing read", []time.Duration{0, 15 * s, 45 * s}, 15 * s},
		{"many missing reads", []time.Duration{0, 15 * s, 105 * s}, 15 * s},
		{"a reader that is late", []time.Duration{0, 15 * s, 32 * s}, 16 * s},
		{"missing reads of a reader that is late", []time.Duration{0, 15 * s, 47 * s}, 15500 * time.Millisecond},
		{"another period", []time.Duration{0, 15 * s, 25 * s}, 10 * s},
		{"another period between two multiples", []time.Duration{0, 15 * s, 37 * s}, 22 * s},
		{"first a multiple", []time.Duration{0, 30 * s, 45 * s}, 15 * s},
		{"longer since", []time.Duration{0, 15 * s, 45 * s, 75 * s, 105 * s, 135 * s}, 30 * s},
		{"half of it, not always", []time.Duration{0, 15 * s, 45 * s, 75 * s, 105 * s, 120 * s, 150 * s}, 15 * s},
		{"stopped", []time.Duration{0, 15 * s, 600 * s}, 15 * s},
	} {
		r := &reader{last: tc.reads[0]}
		for _, at := range tc.reads[1:] {
			r.note(at)
		}
		if r.period != tc.want {
			t.Errorf("%s: got period %v, want %v", tc.name, r.period, tc.want)
		}
	}
}

// TestReadersAreLimited checks that a flood of readers does not grow memory, and hardly affects
// readers that read at that time.
func TestReadersAreLimited(t *testing.T) {
	m := readers{}
	random := newRandom(t)
	now := time.Duration(0)
	const tenants, steps = 100, 30
	for i := range steps {
		for id := range uint64(tenants) {
			m.note(id+1, now)
		}
		for range 2000 { // within one period, for 7.5 minutes
			m.note(random.Uint64()|1<<63, now)
		}
		now += 15 * time.Second
		if len(m) > maxReaders {
			t.Fatalf("got %d readers after %d steps", len(m), i)
		}
	}
	known := 0
	for id := range uint64(tenants) {
		if r := m[id+1]; r != nil && r.period == 15*time.Second {
			known++
		}
	}
	if known < tenants*9/10 {
		t.Errorf("a flood of readers replaced %d of %d", tenants-known, tenants)
	}
	for range maxReaders {
		m.makeRoom(now + time.Hour)
	}
	if len(m) > 0 {
		t.Errorf("%d readers are kept that have stopped", len(m))
	}
	if r := m.note(0, now); r != nil || len(m) > 0 {
		t.Error("the hash 0 has a reader")
	}
}
