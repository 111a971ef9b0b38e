package engine

import "testing"

// TestRatesOfScrapes has other containers that are scraped at the same times.
func TestRatesOfScrapes(t *testing.T) {
	const up = "app 200 1m0s"
	for _, r := range []rounds{
		{"a minute", [][]float64{{-80, 0, -65, 3, -50, 6, -35, 9, -20, 12, -5, 15}}, []string{up}},
		{"two samples may have one reading", [][]float64{{-20, 100, -5, 100}, {-20, 100, -5, 100, 10, 106}},
			[]string{"", "app 200 30s"}},
		{"two samples with a long interval", [][]float64{{-35, 100, -5, 106}}, []string{"app 200 30s"}},
		{"the next sample", [][]float64{{-80, 0, -65, 3, -50, 6, -35, 9, -20, 12}, {-65, 3, -50, 6, -35, 9, -20, 12, -5, 12}},
			[]string{up, "app 150 1m0s"}},
		{"no new sample", [][]float64{{-65, 3, -35, 9, -5, 15}, {-65, 3, -35, 9, -5, 15}}, []string{up, up}},
		{"restart", [][]float64{
			{-95, 0, -65, 6, -35, 12}, {-95, 0, -65, 6, -35, 12, -20, 1}, {-65, 6, -35, 12, -20, 1, -5, 1},
			{-65, 6, -35, 12, -20, 1, -5, 1, 10, 13},
		}, []string{up, up, up, "app 400 30s"}},
		{"restart between two responses", [][]float64{{-95, 0, -65, 6, -35, 12}, {-20, 1, -5, 4, 10, 7}},
			[]string{up, "app 200 30s"}},
		{"engine was away: the last sample counts", [][]float64{{-95, 0, -65, 6, -35, 12}, {10, 21}},
			[]string{up, "app 200 45s"}},
		{"zero is data", [][]float64{{-65, 3, -35, 3, -5, 3}}, []string{"app 0 1m0s"}},
	} {
		r.run(t, 3)
	}
}

// TestNewContainerOfScrapes serves the mean since the start, until there are samples 30 s apart.
func TestNewContainerOfScrapes(t *testing.T) {
	f := newFixture(t, "")
	f.put("app", "", -80, 0, -65, 3, -50, 6, -35, 9, -20, 12)
	f.putTogether(3, -35, 1, -20, 1)
	f.mustRefresh()
	f.putStart("new", -25)
	f.putTogether(3, -20, 1, -5, 1)
	for i, want := range []string{"new 150 20s", "new 150 20s", "new 100 30s"} {
		seconds := float64(15*i - 5)
		f.put("app", "", -65+15*float64(i), 3, seconds, 15)
		f.put("new", "", []float64{-5, 3, 10, 3, 25, 6}[:2*i+2]...)
		f.mustRefresh()
		f.wantPod("app 200 1m0s, " + want)
	}
}

// TestRecognition decides whether times are those of scrapes, in responses that are not clear.
func TestRecognition(t *testing.T) {
	f := newFixture(t, "")
	want := func(name string, want bool) {
		t.Helper()
		f.mustRefresh()
		if (f.nodes["n1"].stamped > 0) != want {
			t.Errorf("%s: got %v, want %v", name, !want, want)
		}
	}
	f.putTogether(2, -20, 1, -5, 2)
	want("two containers are too few", false)
	f.putTogether(3, -5, 2)
	want("one sample of each is too few", false)
	f.putTogether(6, -20, 1, -5, 2)
	f.putTogether(3, -20.001, 1, -5, 2)
	want("half of the containers", false)
	f.putTogether(4, -20, 1, -5, 2)
	f.putTogether(1, -20, 1)
	want("the engine has not stored all", true)
	for i := range honoredAfter {
		for c := 6; c > 0; c-- {
			f.putTogether(c, float64(-20+c), 1, float64(-5+c), 2)
		}
		want("different times again", i < honoredAfter-1)
	}
}
