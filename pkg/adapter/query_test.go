package adapter

import (
	"strings"
	"testing"
)

func TestParseQuery(t *testing.T) {
	tests := []struct {
		in   string
		form string // of the alternatives, separated by " | "
		want string // the selectors, separated by blanks
	}{
		{`up`, `S`, `up`},
		{`{__name__="up"}`, `S`, `{__name__="up"}`},
		{`sum by (<<.GroupBy>>) (up{<<.LabelMatchers>>, a!="}(", b=~'x|y'})`, `sum(S)`, `up{a!="}(",b=~'x|y'}`},
		{"sum(irate(up[5m])) by (<< .GroupBy >>) # comment ) or", `sum(irate(S))`, `up`},
		{`sum(up) by (node)`, `sum by(node) (S)`, `up`},
		{`sum without (cpu, mode) (up)`, `sum without(cpu,mode) (S)`, `up`},
		{`(1 - (rate(a:b[1m])))`, `(1 - rate(S))`, `a:b`},
		{`1 - irate(a[1m]) * on(namespace, pod) group_left(node) (b)`,
			`1 - irate(S) * on(namespace,pod) group_left(node) S`, `a b`},
		{`a - b or c{x="or"} or vector(1)`, `S - S | S | vector(1)`, `a b c{x="or"}`},
		{`(a or b)`, `(S or S)`, `a b`},
		{`max_over_time(rate(a[5m])[1h:1m])`, `max_over_time(rate(S)[1h:1m])`, `a`},
		{`a offset -5m`, `S offset -5m`, `a`},
		{`a @ end() > bool 1.5`, ``, ``},
		{`label_replace(a, "node", "$1", "instance", "(.*)")`, `label_replace(S, "node", "$1", "instance", "(.*)")`, `a`},
		{`-a ^ 2`, `-S ^ 2`, `a`},
		{``, ``, ``},
		{`sum(`, ``, ``},
		{`sum(a b)`, ``, ``},
		{`a{b}`, ``, ``},
		{`a{b=c}`, ``, ``},
		{`a{b="c"`, ``, ``},
		{`a{<<.Series>>}`, ``, ``},
		{`<<.Series>>`, ``, ``},
		{`a[5m`, ``, ``},
		{`a or`, ``, ``},
		{`a)`, ``, ``},
		{`sum by (a`, ``, ``},
		{`"a`, ``, ``},
		{strings.Repeat("(", 1000) + "a" + strings.Repeat(")", 1000), ``, ``},
	}
	for _, tt := range tests {
		queries, err := parseQuery(tt.in)
		if (err != nil) != (tt.form == "") {
			t.Errorf("%.50s: got error %v", tt.in, err)
		}
		var forms, selectors []string
		for _, q := range queries {
			forms = append(forms, q.form)
			for _, s := range q.selectors {
				selectors = append(selectors, s.String())
			}
		}
		if got := strings.Join(forms, " | "); got != tt.form {
			t.Errorf("%.50s: got form %q, want %q", tt.in, got, tt.form)
		}
		if got := strings.Join(selectors, " "); got != tt.want {
			t.Errorf("%.50s: got selectors %q, want %q", tt.in, got, tt.want)
		}
	}
}

// FuzzParseQuery checks that each S in a form has a selector, whatever the query is.
func FuzzParseQuery(f *testing.F) {
	f.Add(`sum by (<<.GroupBy>>) (1 - irate(a{b="c",<<.LabelMatchers>>}[1m]) * on(d) group_left(e) (f)) or g offset 1h`)
	f.Fuzz(func(t *testing.T, text string) {
		queries, err := parseQuery(text)
		if (err != nil) != (len(queries) == 0) {
			t.Errorf("got %d queries, error %v", len(queries), err)
		}
		for _, q := range queries {
			if q.form == "" {
				t.Errorf("got no form of %q", text)
			}
		}
	})
}
