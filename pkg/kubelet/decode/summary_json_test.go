package decode

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// object is a JSON object in its order and with its duplicates. Other values are represented as by
// encoding/json.
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

// summaryReference is the result of decoding a summary with encoding/json.
type summaryReference struct {
	*reference
	otherNode bool
}

// as converts a value to the type T that it should have. A value of another type is counted unless
// it is null.
func as[T any](r *summaryReference, value any, reason usage.SkipReason) (_ T, ok bool) {
	typed, ok := value.(T)
	if !ok && value != nil {
		r.skipContainer(reason)
	}
	return typed, ok
}

func (r *summaryReference) object(value any) object {
	fields, _ := as[object](r, value, usage.Malformed)
	return fields
}

func (r *summaryReference) array(value any) []any {
	elements, _ := as[[]any](r, value, usage.Malformed)
	return elements
}

func (r *summaryReference) string(value any) string {
	s, _ := as[string](r, value, usage.Malformed)
	return s
}

func (r *summaryReference) summary(root any) {
	for _, f := range r.object(root) {
		switch f.key {
		case "node":
			for _, f := range r.object(f.value) {
				if f.key == "nodeName" {
					name := r.string(f.value)
					r.otherNode = r.otherNode || name != "" && name != "node1"
				}
				r.sample(&r.node, f)
			}
		case "pods":
			for _, pod := range r.array(f.value) {
				r.pod(pod)
			}
		}
	}
}

func (r *summaryReference) pod(value any) {
	var namespace, pod string
	var containers []sample
	partial := false
	for _, f := range r.object(value) {
		switch f.key {
		case "podRef":
			for _, f := range r.object(f.value) {
				switch f.key {
				case "namespace":
					namespace = r.string(f.value)
				case "name":
					pod = r.string(f.value)
				}
			}
		case "containers":
			list, ok := as[[]any](r, f.value, usage.Malformed)
			partial = partial || !ok && f.value != nil
			for _, container := range list {
				fields, ok := as[object](r, container, usage.Malformed)
				if !ok {
					partial = partial || container != nil
					continue
				}
				c := r.namedSample(fields)
				if reason, bad := badName(c.name); bad {
					r.skipContainer(reason)
					partial = true
					continue
				}
				containers = append(containers, c)
			}
		}
	}
	if reason, bad := badName(namespace, pod); bad {
		for range containers {
			r.skipContainer(reason)
		}
		return
	}
	if partial {
		r.dropped[[2]string{namespace, pod}] = true
		return
	}
	for _, c := range containers {
		if s, isNew := r.container(namespace, pod, c.name); isNew {
			*s = c.Sample
		} else {
			r.skip(usage.Duplicate)
		}
	}
}

func (r *summaryReference) namedSample(fields object) (c sample) {
	for _, f := range fields {
		switch f.key {
		case "name":
			c.name = r.string(f.value)
		case "startTime":
			c.StartedAt = 0
			if at, _ := r.date(f.value); at >= oldestStart*1e9 {
				c.StartedAt = at
			}
		}
		r.sample(&c.Sample, f)
	}
	return c
}

func (r *summaryReference) sample(s *usage.Sample, f jsonField) {
	if f.key != "cpu" && f.key != "memory" && f.key != "swap" {
		return
	}
	at, untimed := scrapedAt, true
	values := map[string]uint64{}
	for _, field := range r.object(f.value) {
		largest := uint64(math.MaxInt64)
		switch f.key + "." + field.key {
		case "cpu.time", "memory.time", "swap.time":
			if at, untimed = r.date(field.value); untimed {
				at = scrapedAt
			}
			continue
		case "cpu.usageCoreNanoSeconds":
			largest = math.MaxUint64
		case "cpu.usageNanoCores", "memory.workingSetBytes", "swap.swapUsageBytes":
		default:
			continue
		}
		delete(values, field.key)
		if number, ok := as[json.Number](r, field.value, usage.Malformed); ok {
			value, err := strconv.ParseUint(number.String(), 10, 64)
			if err != nil || value > largest {
				r.skip(usage.BadValue)
				continue
			}
			values[field.key] = value
		}
	}
	if at == 0 {
		return
	}
	for key, value := range values {
		switch key {
		case "usageCoreNanoSeconds":
			s.CPUSeconds, s.At, s.Untimed, s.Has = float64(value)/1e9, at, untimed, s.Has|usage.HasCPU
		case "usageNanoCores":
			s.Rate, s.At, s.Untimed, s.Has = value, at, untimed, s.Has|usage.HasRate
		case "workingSetBytes":
			s.Memory, s.Has = value, s.Has|usage.HasMemory
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
	var date time.Time
	err := date.UnmarshalText([]byte(text))
	if err != nil || date.Unix() <= 0 || date.After(scrapedAt.Add(maxAhead).Time()) {
		r.skip(usage.BadTime)
		return 0, false
	}
	return usage.At(date), false
}

// compareWithJSON compares the result with that of encoding/json.
func compareWithJSON(t *testing.T, decode decodeFunc, text []byte) {
	t.Helper()
	var dst usage.Scrape
	err := decode(&dst, bytes.Clone(text))
	if valid := json.Valid(text); valid == errors.Is(err, errNotJSON) {
		t.Fatalf("got error %v, want errNotJSON: %v\n%.2000q", err, !valid, text)
	}
	if err != nil && errors.Is(err, errNotJSON) || !utf8.Valid(text) { // encoding/json replaces invalid UTF-8
		return
	}
	want := summaryReference{reference: newReference()}
	want.summary(parseJSON(t, text))
	if want.otherNode != isLike(err, errOtherNode) {
		t.Fatalf("got error %v, want errOtherNode: %v\n%.2000q", err, want.otherNode, text)
	}
	if !want.otherNode {
		compare(t, text, &dst, err, want.reference)
	}
}

// TestSummaryLikeJSON compares with encoding/json on summaries of kubelets that are changed but
// stay JSON, and on some that do not.
func TestSummaryLikeJSON(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	decode := summaryDecoder(0)
	for _, original := range [][]byte{readFile(t, shortSummary), readFile(t, fullSummary), largeSummary(12, 2)} {
		root := parseJSON(t, original)
		for range 50 {
			every := 1 + r.IntN(200)
			text := writeJSON(nil, mutateJSON(r, every, root))
			compareWithJSON(t, decode, text)

			for range 1 + r.IntN(3) {
				const odd = "{}[]\",:\\ \n-+.0e1ntf\x00\x1f\xff"
				text[r.IntN(len(text))] = odd[r.IntN(len(odd))]
			}
			compareWithJSON(t, decode, text)
			compareWithJSON(t, decode, text[:r.IntN(len(text))])
		}
	}
}

// mutateJSON returns a copy of a value in which one of every so many values is changed.
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
			case 0: // remove it
				continue
			case 1: // duplicate it, with another value
				out = append(out, jsonField{f.key, oddValue(r)})
			case 2:
				keys := []string{"name", "Name", "time", "cpu", "", "x\"\\\n", "podRef", "containers", "usageNanoCores"}
				field.key = keys[r.IntN(len(keys))]
			case 3: // add an unknown field
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
			case 0: // remove it
				copies = 0
			case 1: // duplicate it
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
	texts := []string{"", "x", "node1", "n\"\\\u2028ü😀\x01", second, "2026-11-20T20:16:07.5+01:00",
		"2027-01-01T00:00:00Z", "1999-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "2026-11-20 20:16:07Z",
		strings.Repeat("y", 300)}
	numbers := []json.Number{"0", "1", "-1", "-0", "1.5", "1e3", "9223372036854775807", "9223372036854775808",
		"18446744073709551615", "18446744073709551616", "1e400"}
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

// writeJSON appends a value.
func writeJSON(b []byte, value any) []byte {
	switch value := value.(type) {
	case object:
		b = append(b, '{')
		for i, f := range value {
			if i > 0 {
				b = append(b, ',')
			}
			b = writeJSON(append(writeJSON(b, f.key), ':'), f.value)
		}
		return append(b, '}')
	case []any:
		b = append(b, '[')
		for i, element := range value {
			if i > 0 {
				b = append(b, ',')
			}
			b = writeJSON(b, element)
		}
		return append(b, ']')
	}
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return append(b, text...)
}

func FuzzSummary(f *testing.F) {
	f.Add(readFile(f, shortSummary))
	f.Add(largeSummary(2, 2))
	reused := summaryDecoder(0)
	f.Fuzz(func(t *testing.T, text []byte) {
		checkDecoder(t, reused, summaryDecoder(0), text, len(text)+1) // an empty text counts as a value
		compareWithJSON(t, reused, text)
	})
}

func BenchmarkSummary(b *testing.B) {
	type stats struct {
		Time                                                                  time.Time
		UsageNanoCores, UsageCoreNanoSeconds, WorkingSetBytes, SwapUsageBytes *uint64
	}
	type sample struct {
		Name              string
		StartTime         time.Time
		CPU, Memory, Swap *stats
	}
	benchmark(b, largeSummary(30, 2), summaryDecoder(0), "encoding/json", func(text []byte) error {
		var summary struct {
			Node sample
			Pods []struct {
				PodRef     struct{ Namespace, Name string }
				Containers []sample
			}
		}
		return json.Unmarshal(text, &summary)
	})
}
