package decode

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// object is a JSON object as it was written: in order, and with what is there twice. Other values
// are what encoding/json makes of them.
type object []jsonField

type jsonField struct {
	key   string
	value any
}

// parseJSON parses valid JSON with encoding/json.
func parseJSON(t testing.TB, text []byte) any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	value, err := parseValue(d)
	if err != nil {
		t.Fatalf("parsing %.100q: %v", text, err)
	}
	return value
}

func parseValue(d *json.Decoder) (any, error) {
	token, err := d.Token()
	bracket, _ := token.(json.Delim)
	if err != nil || bracket == 0 {
		return token, err
	}
	fields, elements := object{}, []any{}
	for d.More() {
		var key string
		if bracket == '{' {
			token, err := d.Token()
			if err != nil {
				return nil, err
			}
			key = token.(string)
		}
		value, err := parseValue(d)
		if err != nil {
			return nil, err
		}
		fields, elements = append(fields, jsonField{key, value}), append(elements, value)
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	if bracket == '{' {
		return fields, nil
	}
	return elements, nil
}

// summaryReference is what a summary means, found the slow and obvious way.
type summaryReference struct {
	decoded
	seen      map[string]bool // containers by their names
	dropped   map[string]bool // pods by namespace/name
	otherNode bool
}

func (r *summaryReference) skip(reason usage.Reason) {
	if r.skipped == nil {
		r.skipped = map[usage.Reason]int{}
	}
	r.skipped[reason]++
}

func (r *summaryReference) lost(reason usage.Reason) {
	r.skip(reason)
	r.partial = true
}

// as gives a value that should be of type T. Unless it is null, it is counted when it is not.
func as[T any](r *summaryReference, value any, reason usage.Reason) (_ T, ok bool) {
	typed, ok := value.(T)
	if !ok && value != nil {
		r.lost(reason)
	}
	return typed, ok
}

func (r *summaryReference) read(root any) {
	fields, _ := as[object](r, root, usage.Malformed)
	for _, f := range fields {
		switch f.key {
		case "node":
			node, _ := as[object](r, f.value, usage.Malformed)
			for _, f := range node {
				if f.key == "nodeName" {
					name, _ := as[string](r, f.value, usage.Malformed)
					r.otherNode = r.otherNode || name != "" && name != "node1"
				}
				r.reading(&r.node, f)
			}
		case "pods":
			pods, _ := as[[]any](r, f.value, usage.Malformed)
			for _, pod := range pods {
				r.pod(pod)
			}
		}
	}
}

func (r *summaryReference) pod(value any) {
	var namespace, pod string
	var containers []sample
	partial := false
	fields, _ := as[object](r, value, usage.Malformed)
	for _, f := range fields {
		switch f.key {
		case "podRef":
			ref, _ := as[object](r, f.value, usage.Malformed)
			for _, f := range ref {
				switch f.key {
				case "namespace":
					namespace, _ = as[string](r, f.value, usage.Malformed)
				case "name":
					pod, _ = as[string](r, f.value, usage.Malformed)
				}
			}
		case "containers":
			list, ok := as[[]any](r, f.value, usage.Malformed)
			partial = partial || !ok && f.value != nil
			for _, container := range list {
				fields, ok := as[object](r, container, usage.Malformed)
				partial = partial || !ok && container != nil
				if !ok {
					continue
				}
				c := r.container(fields)
				if reason, bad := badName(c.name); bad {
					r.lost(reason)
					partial = true
					continue
				}
				containers = append(containers, c)
			}
		}
	}
	for _, name := range []string{namespace, pod} {
		if reason, bad := badName(name); bad {
			for range containers {
				r.lost(reason)
			}
			return
		}
	}
	if partial {
		r.dropped[namespace+"/"+pod] = true
		return
	}
	for _, c := range containers {
		name := strings.Join([]string{namespace, pod, c.name}, "/")
		id := fmt.Sprintf("%q %q %q", namespace, pod, c.name)
		switch {
		case r.seen[id]:
			r.skip(usage.Duplicate)
		default:
			r.seen[id] = true
			r.containers = append(r.containers, sample{name, c.Sample})
		}
	}
}

func badName(name string) (_ usage.Reason, bad bool) {
	switch {
	case name == "":
		return usage.NoIdentity, true
	case len(name) > DefaultMaxLabelBytes:
		return usage.OverLimit, true
	}
	return 0, false
}

func (r *summaryReference) container(fields object) (c sample) {
	for _, f := range fields {
		switch f.key {
		case "name":
			c.name, _ = as[string](r, f.value, usage.Malformed)
		case "startTime":
			c.StartedAt = 0
			if at, _ := r.date(f.value); at >= oldestStart*1e9 {
				c.StartedAt = at
			}
		}
		r.reading(&c.Sample, f)
	}
	return c
}

func (r *summaryReference) reading(s *usage.Sample, f jsonField) {
	if f.key != "cpu" && f.key != "memory" && f.key != "swap" {
		return
	}
	at, untimed := scrapedAt, true
	figures := map[string]uint64{}
	fields, _ := as[object](r, f.value, usage.Malformed)
	for _, field := range fields {
		largest := uint64(math.MaxInt64)
		switch f.key + "." + field.key {
		case "cpu.time", "memory.time", "swap.time":
			var isNull bool
			if at, isNull = r.date(field.value); isNull {
				at = scrapedAt
			}
			untimed = isNull
			continue
		case "cpu.usageCoreNanoSeconds":
			largest = math.MaxUint64
		case "cpu.usageNanoCores", "memory.workingSetBytes", "swap.swapUsageBytes":
		default:
			continue
		}
		delete(figures, field.key)
		if number, ok := as[json.Number](r, field.value, usage.Malformed); ok {
			value, err := strconv.ParseUint(number.String(), 10, 64)
			if err != nil || value > largest {
				r.skip(usage.BadValue)
				continue
			}
			figures[field.key] = value
		}
	}
	if at == 0 {
		return
	}
	for key, value := range figures {
		switch key {
		case "usageCoreNanoSeconds":
			s.CPUSeconds, s.At, s.Untimed, s.Has = float64(value)/1e9, at, untimed, s.Has|usage.HasCPU
		case "usageNanoCores":
			s.Rate, s.At, s.Untimed, s.Has = value, at, untimed, s.Has|usage.HasRate
		case "workingSetBytes":
			s.Memory, s.MemoryAt, s.Has = value, at, s.Has|usage.HasMemory
		case "swapUsageBytes":
			s.Swap, s.Has = value, s.Has|usage.HasSwap
		}
	}
}

func (r *summaryReference) date(value any) (at usage.Time, isNull bool) {
	text, ok := as[string](r, value, usage.BadTime)
	if !ok {
		return 0, value == nil
	}
	quoted, err := json.Marshal(text)
	var date time.Time
	if err == nil {
		err = date.UnmarshalJSON(quoted)
	}
	if err != nil || date.Unix() <= 0 || date.After(scrapedAt.Add(maxAhead).Time()) {
		r.skip(usage.BadTime)
		return 0, false
	}
	return usage.At(date), false
}

// removeDropped removes the containers of pods of which not all can be kept.
func (r *summaryReference) removeDropped() {
	if len(r.dropped) == 0 {
		return
	}
	r.containers = slices.DeleteFunc(r.containers, func(c sample) bool {
		return slices.ContainsFunc(slices.Collect(maps.Keys(r.dropped)), func(pod string) bool { return strings.HasPrefix(c.name, pod+"/") })
	})
	if len(r.containers) == 0 {
		r.containers = nil
	}
}

// useless reports whether there is no sample, or none with a possible time.
func (d *decoded) useless() bool {
	if d.node.Has != 0 {
		return false
	}
	return len(d.containers) == 0 ||
		d.skipped[usage.BadTime] > 0 && !slices.ContainsFunc(d.containers, func(c sample) bool { return c.Has != 0 })
}

// checkAgainstJSON decodes text and compares with what encoding/json makes of it.
func checkAgainstJSON(t *testing.T, d *Summary, text []byte) {
	t.Helper()
	var dst usage.Scrape
	err := d.Decode(&dst, bytes.Clone(text), "node1", Times{At: scrapedAt})
	if !json.Valid(text) {
		if !errors.Is(err, ErrNotJSON) {
			t.Fatalf("error %v for what is not JSON: %.2000q", err, text)
		}
		return
	}
	root := parseJSON(t, text)
	if errors.Is(err, ErrNotJSON) {
		t.Fatalf("error %v for what is JSON: %.2000q", err, text)
	}
	if !utf8.Valid(text) {
		return // encoding/json reads something else into it than what it says
	}
	want := summaryReference{seen: map[string]bool{}, dropped: map[string]bool{}}
	want.read(root)
	want.removeDropped()
	if want.otherNode != errors.Is(err, ErrOtherNode) {
		t.Fatalf("error %v, want one for another node: %v, of %.2000q", err, want.otherNode, text)
	}
	empty := want.useless()
	if !want.otherNode && (err != nil) != empty {
		t.Fatalf("error %v, want one: %v, of %.2000q", err, empty, text)
	}
	if got := summarize(&dst); !reflect.DeepEqual(got, want.decoded) {
		t.Fatalf("\n got %+v\nwant %+v\n%.2000q", got, want.decoded, text)
	}
}

// TestSummaryAsJSON compares with encoding/json on real summaries that were changed in all the ways
// that leave them JSON, and in some that do not.
func TestSummaryAsJSON(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	var d Summary
	for _, original := range [][]byte{readSummary(t, shortSummary), readSummary(t, fullSummary), largeSummary(12, 2)} {
		root := parseJSON(t, original)
		for range 50 {
			every := 1 + r.IntN(200)
			text := writeJSON(r, nil, mutateJSON(r, every, root), r.IntN(3) == 0)
			if !json.Valid(text) {
				t.Fatalf("the mutation is no JSON: %s", text)
			}
			checkAgainstJSON(t, &d, text)

			for range 1 + r.IntN(3) { // some bytes of it are others
				const odd = "{}[]\",:\\ \n-+.0e1ntf\x00\x1f\xff"
				text[r.IntN(len(text))] = odd[r.IntN(len(odd))]
			}
			checkAgainstJSON(t, &d, text)
			checkAgainstJSON(t, &d, text[:r.IntN(len(text))])
		}
	}
}

// mutateJSON gives a copy of a value in which one of so many is another one.
func mutateJSON(r *rand.Rand, every int, value any) any {
	if r.IntN(every) == 0 {
		return oddValue(r)
	}
	switch value := value.(type) {
	case object:
		var out object
		for _, f := range value {
			field := jsonField{f.key, mutateJSON(r, every, f.value)}
			switch r.IntN(4 * every) {
			case 0: // gone
				continue
			case 1: // there twice, with another value
				out = append(out, jsonField{f.key, oddValue(r)})
			case 2:
				field.key = []string{"name", "Name", "time", "cpu", "", "x\"\\\n", "podRef", "containers", "usageNanoCores"}[r.IntN(9)]
			case 3: // a field that no kubelet sends
				out = append(out, jsonField{"new", mutateJSON(r, every, f.value)})
			}
			out = append(out, field)
		}
		if r.IntN(every) < 20 {
			r.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
		}
		return out
	case []any:
		var out []any
		for _, element := range value {
			copies := 1
			switch r.IntN(2 * every) {
			case 0: // gone
				copies = 0
			case 1: // there twice, each with mutations of its own
				copies = 2
			}
			for range copies {
				out = append(out, mutateJSON(r, every, element))
			}
		}
		return out
	}
	return value
}

func oddValue(r *rand.Rand) any {
	texts := []string{"", "x", "node1", "n\"\\\u2028ü😀\x01", second, "2026-11-20T20:16:07.5+01:00", "2027-01-01T00:00:00Z", "1999-01-01T00:00:00Z",
		"0001-01-01T00:00:00Z", "2026-11-20 20:16:07Z", strings.Repeat("y", 300)}
	numbers := []json.Number{"0", "1", "-1", "-0", "1.5", "1e3", "9223372036854775807", "9223372036854775808", "18446744073709551615",
		"18446744073709551616", "1e400"}
	switch r.IntN(5) {
	case 0:
		return texts[r.IntN(len(texts))]
	case 1:
		return numbers[r.IntN(len(numbers))]
	case 2:
		return []any{nil, true, false}[r.IntN(3)]
	case 3:
		return []any{json.Number("1"), "x", nil, []any{}, object{}}[:r.IntN(6)]
	default:
		return object{{"name", "x"}, {"namespace", "y"}, {"usageNanoCores", json.Number("7")}, {"time", nil}}[:r.IntN(5)]
	}
}

// writeJSON appends a value. A wild one has blanks and escape sequences wherever they may be.
func writeJSON(r *rand.Rand, b []byte, value any, wild bool) []byte {
	blank := func(b []byte) []byte {
		for wild && r.IntN(4) == 0 {
			b = append(b, " \n\r\t"[r.IntN(4)])
		}
		return b
	}
	return blank(writeValue(r, blank(b), value, wild))
}

func writeValue(r *rand.Rand, b []byte, value any, wild bool) []byte {
	switch value := value.(type) {
	case object:
		b = append(b, '{')
		for i, f := range value {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(writeJSON(r, b, f.key, wild), ':')
			b = writeJSON(r, b, f.value, wild)
		}
		return append(b, '}')
	case []any:
		b = append(b, '[')
		for i, element := range value {
			if i > 0 {
				b = append(b, ',')
			}
			b = writeJSON(r, b, element, wild)
		}
		return append(b, ']')
	case string:
		if !wild {
			break
		}
		b = append(b, '"')
		for _, c := range value {
			if r.IntN(5) == 0 && c < 0x10000 || c < ' ' || c == '"' || c == '\\' {
				b = fmt.Appendf(b, `\u%04x`, c)
			} else {
				b = utf8.AppendRune(b, c)
			}
		}
		return append(b, '"')
	}
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return append(b, text...)
}

func FuzzSummary(f *testing.F) {
	f.Add(readSummary(f, shortSummary))
	f.Add(largeSummary(2, 2))
	var reused Summary
	if err := reused.Decode(&usage.Scrape{}, largeSummary(20, 2), "node1", Times{At: scrapedAt}); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		checkSummary(t, &reused, text)
		checkAgainstJSON(t, &reused, text)
	})
}

// checkSummary decodes text and checks what must hold of any summary.
func checkSummary(t *testing.T, d *Summary, text []byte) {
	var dst, fresh usage.Scrape
	err := d.Decode(&dst, bytes.Clone(text), "node1", Times{At: scrapedAt})
	freshErr := new(Summary).Decode(&fresh, bytes.Clone(text), "node1", Times{At: scrapedAt})
	if !reflect.DeepEqual(dst, fresh) || fmt.Sprint(err) != fmt.Sprint(freshErr) {
		t.Fatalf("a reused decoder gives %+v, %v; a new one %+v, %v", dst, err, fresh, freshErr)
	}
	checkContainers(t, &dst, len(text)+1) // no text at all is skipped as one value
}

func BenchmarkSummary(b *testing.B) {
	text := largeSummary(30, 2)
	b.Run("decoder=ours", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		b.ReportAllocs()
		var d Summary
		var dst usage.Scrape
		for b.Loop() {
			if err := d.Decode(&dst, text, "node1", Times{At: scrapedAt}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decoder=encoding/json", func(b *testing.B) {
		type figures struct {
			Time                                                                  time.Time
			UsageNanoCores, UsageCoreNanoSeconds, WorkingSetBytes, SwapUsageBytes *uint64
		}
		type readings struct {
			Name              string
			StartTime         time.Time
			CPU, Memory, Swap *figures
		}
		b.SetBytes(int64(len(text)))
		b.ReportAllocs()
		for b.Loop() {
			var summary struct {
				Node readings
				Pods []struct {
					PodRef     struct{ Namespace, Name string }
					Containers []readings
				}
			}
			if err := json.Unmarshal(text, &summary); err != nil {
				b.Fatal(err)
			}
		}
	})
}
