package fair

import (
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
)

// TestPool checks what users get who take ones until they are rejected.
func TestPool(t *testing.T) {
	for _, test := range []struct {
		size int64
		want []int64 // of each user
	}{
		{0, []int64{0}},
		{1, []int64{1, 0}},
		{2, []int64{1, 1, 0}},
		{16, []int64{8, 4, 2, 1, 1, 0}},
		{400, []int64{200, 100, 50, 25, 12, 6, 3, 2, 1, 1, 0}},
	} {
		p := NewPool(test.size)
		for range 2 { // all is returned after the first time
			for i, want := range test.want {
				got := int64(0)
				for p.Take(string(rune('a'+i)), 1) {
					got++
				}
				if got != want {
					t.Errorf("pool of %d: user %d got %d, want %d", test.size, i, got, want)
				}
			}
			for i, n := range test.want {
				for range n {
					p.Return(string(rune('a'+i)), 1)
				}
			}
			if p.free != p.Size() || len(p.taken) != 0 {
				t.Errorf("pool of %d: after all is returned, %d are free, and users have %v", test.size, p.free, p.taken)
			}
		}
	}
}

// TestLargeParts checks that a user without a part may take more than half, and no user more than is
// free.
func TestLargeParts(t *testing.T) {
	p := NewPool(10)
	for i, step := range []struct {
		user string
		n    int64
		want bool
	}{
		{"a", 11, false}, {"a", 7, true}, {"a", 1, false}, {"b", 4, false}, {"b", 2, true}, {"b", 1, false}, {"c", 1, true},
	} {
		if got := p.Take(step.user, step.n); got != step.want {
			t.Errorf("step %d: got %v", i, got)
		}
	}
}

func TestUserOf(t *testing.T) {
	for name, want := range map[string]string{
		"alice":                               "alice",
		"system:anonymous":                    "system:anonymous",
		"system:serviceaccount:ns:a":          "system:serviceaccount:ns:",
		"system:serviceaccount:ns:b":          "system:serviceaccount:ns:",
		"system:serviceaccount:ns2:b":         "system:serviceaccount:ns2:",
		"system:serviceaccount:kube-system:a": "system:serviceaccount:kube-system:a",
		"system:serviceaccount:ns":            "system:serviceaccount:ns",
		"":                                    "",
	} {
		if got := UserOf(&user.DefaultInfo{Name: name}); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}
