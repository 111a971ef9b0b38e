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

	"github.com/kube-vitals/kube-vitals/pkg/reason"
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
			if at, _ := r.date(f.value); at >= usage.OldestStart*1e9 {
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

func (r *summaryReference) date(value any) (at usage.NodeTime, isNull bool) {
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
	return usage.NodeAt(date), false
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
	if want.otherNode != (reason.Of(err) == reason.BadEndpoint) {
		t.Fatalf("got error %v, want one of another node: %v\n%.2000q", err, want.otherNode, text)
	}
	if !want.otherNode {
		compare(t, text, &dst, err, want.reference)
	}
}

// TestSummaryLikeJSON compares with encoding/json on texts for each rule.
func TestSummaryLikeJSON(t *testing.T) {
	const number = `"cpu":{"usageCoreNanoSeconds":`
	podA := podOf(podP, named("a"))
	decode := summaryDecoder(0)
	for _, fields := range []string{ // of a container
		``, `"cpu":null,"memory":null,"swap":null,"rootfs":null`, `"cpu":{},"memory":{},"swap":{}`,
		`"cpu":{"time":null,"usageNanoCores":null,"usageCoreNanoSeconds":null}`, `"cpu":{"time":"` + second + `"}`,
		`"CPU":{"usageCoreNanoSeconds":1},"Memory":{"workingSetBytes":1},"cpus":1,"":2`,
		`"x":[[],{},[{` + cpu1 + `}],"]}",-0.5e+3,true,false,null],"cpu":{"psi":{"full":{"avg10":1.25}},"usageNanoCores":1}`,

		`"cpu":{"usageCoreNanoSeconds":1,"time":"` + second + `"}`, number + `3,"usageCoreNanoSeconds":1}`,
		number + `1,"usageCoreNanoSeconds":null}`, cpu1 + `,"cpu":{"usageNanoCores":5}`, cpu1 + `,"cpu":null`,

		number + `25080507606}`, number + `18446744073709551615}`, number + `18446744073709551616}`, number + `-1}`,
		number + `1.5}`, number + `1e9}`, number + strings.Repeat("9", 1000) + `}`, number + `"1"}`, number + `true}`,
		number + `[1]}`, number + `{"value":1}}`, number + `1,"usageNanoCores":-5}`, number + `0,"usageNanoCores":0}`,
		`"cpu":{"usageNanoCores":9223372036854775807}`, `"cpu":{"usageNanoCores":9223372036854775808}`,
		`"memory":{"workingSetBytes":9223372036854775807,"usageBytes":7}`, `"memory":{"workingSetBytes":9223372036854775808}`,
		`"swap":{"swapAvailableBytes":7,"swapUsageBytes":0}`, `"swap":{"swapUsageBytes":9223372036854775808}`,
		`"cpu":5`, `"cpu":"5"`, `"memory":[]`, `"swap":true`, `"cpu":[],"memory":[]`,

		number + `1,"time":"2026-11-20T21:16:07.25+01:00"}`, number + `1,"time":"2026-11-20T21:16:07.5Z"}`, // an hour ahead
		number + `1,"time":"2026-11-20T21:16:07.500000001Z"}`, number + `1,"time":"1970-01-01T00:00:00Z"}`,
		number + `1,"time":"0001-01-01T00:00:00Z"}`, number + `1,"time":"9999-12-31T23:59:59Z"}`,
		number + `1,"time":"2026-02-29T00:00:00Z"}`, number + `1,"time":""}`, number + `1,"time":"yesterday"}`,
		number + `1,"time":1795205767}`, `"memory":{"time":"yesterday","workingSetBytes":1},` + cpu1,
		`"swap":{"time":"yesterday","swapUsageBytes":1}`,
		`"startTime":"` + second + `"`, `"startTime":null`, `"startTime":{}`, `"startTime":"0001-01-01T00:00:00Z"`,
		`"startTime":"2026-11-20T21:16:08Z"`,
	} {
		// A sample of the node keeps the response from being empty.
		const node = `{"node":{"nodeName":"","systemContainers":[{` + cpu1 + `}],"swap":{"swapUsageBytes":0}},"pods":[`
		container := strings.TrimSuffix(`{"name":"c",`+fields, ",") + "}"
		compareWithJSON(t, decode, []byte(node+podOf(podP, container)+"]}"))
	}
	for _, text := range []string{
		`{"node":{` + cpu1 + `},"pods":null}`, `{"node":{` + cpu1 + `},"pods":{}}`, `{"node":"node1","pods":[` + podA + `]}`,
		podsOf(`{"cpu":{"usageCoreNanoSeconds":9},"podRef":` + podP + `,"containers":[` + named("a") + `],"memory":5}`),
		podsOf(`{"containers":[` + named("a") + `,` + named("b") + `],"podRef":` + podP + `}`),
		podsOf(podOf(podP, `{`+cpu1+`,"name":"a"}`)),
		"\r\n\t { \"pods\" : [ " + podOf(podP, named("a")+" \n") + " ,\n" + podOf(podP, named("b")) + " ] } \n\n",
		podsOf(podOf(`{"n\u0061me":"\u0070","\u006eamespace":"\"\\\/\b\f\n\r\t"}`, named(`\u00fc\u20AC\ud83d\ude00\u0000`))),
		podsOf(podOf(podP, named(`\ud83d`), named(`\ude00x`), named(`\ud83d\u0041`), named(`\ud83d\n`))),
		podsOf(podOf(podP, named("ü€😀\x7f"))),
		podsOf(podOf(podP, named(strings.Repeat("x", 253))), podOf(podQ, named("b"), named(strings.Repeat("x", 254)))),
		podsOf(podA, podOf(`{"name":"`+strings.Repeat("x", 254)+`","namespace":"n"}`, named("b"))),
		podsOf(podA + "," + strings.Repeat(`{"x":[`, 4000) + strings.Repeat("]}", 4000)),

		// Duplicates.
		podsOf(`{"podRef":{"name":"x","name":"p"},"podRef":{"namespace":"n"},"containers":[` + named("a") +
			`],"containers":[` + named("b") + `]}`),
		`{"pods":[` + podA + `],"pods":[` + podOf(podP, named("b")) + `]}`,
		podsOf(podOf(podP, named("a"), named("a"), named("b")), podOf(podP, named("b"), named("c"))),
		podsOf(podOf(podQ, named("b")), podA, podOf(podQ, `{"name":""}`)), // one of which is skipped

		// Nothing, or of the wrong type.
		podsOf("null", podOf(podP, "null", named("a"), "null"), `{}`, `{"containers":null}`, podOf("{}")),
		podsOf(podA, podOf(podQ, `{"cpu":{}}`, `{"name":""}`, `{"name":null}`, named("b"))),
		podsOf(podA, podOf(`{"namespace":"n"}`, named("b")), podOf(`{"name":"p"}`, named("c")), podOf("null", named("d"))),
		podsOf("5", `"x"`, "[]", "true", podA),
		podsOf(podA, podOf(podQ, "5", `"x"`, named("b"), "[]", "false")),
		podsOf(podA, `{"containers":[`+named("b")+`],"podRef":`+podQ+`,"containers":{"b":1}}`),
		podsOf(podA, podOf(podQ, named("b"), `{"name":5}`), podOf(`{"name":[],"namespace":"n"}`), podOf(`"n/p"`)),
	} {
		compareWithJSON(t, decode, []byte(text))
	}
}

// TestChangedSummaryLikeJSON compares with encoding/json on summaries of kubelets that are changed but
// stay JSON, and on some that do not.
func TestChangedSummaryLikeJSON(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	decode, decodeStorage := summaryDecoder(0), storageDecoder(0)
	compareBoth := func(text []byte) {
		compareWithJSON(t, decode, text)
		checkStorage(t, decodeStorage, text)
	}
	for _, original := range [][]byte{readFile(t, shortSummary), readFile(t, fullSummary)} {
		compareBoth(original)
		root := parseJSON(t, original)
		for range 50 {
			text := writeJSON(nil, mutateJSON(r, 1+r.IntN(200), root))
			compareBoth(text)
			for range 1 + r.IntN(3) {
				const odd = "{}[]\",:\\ \n-+.0e1ntf\x00\x1f\xff"
				text[r.IntN(len(text))] = odd[r.IntN(len(odd))]
			}
			compareBoth(text)
			compareBoth(text[:r.IntN(len(text))])
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
	f.Add(readFile(f, storageSummary))
	f.Add(largeResponse(shortSummaryPath, 2, 2))
	reused, reusedStorage := summaryDecoder(0), storageDecoder(0)
	f.Fuzz(func(t *testing.T, text []byte) {
		checkDecoder(t, reused, summaryDecoder(0), text, len(text)+1) // an empty text counts as a value
		compareWithJSON(t, reused, text)
		checkDecoder(t, reusedStorage, storageDecoder(0), text, len(text)+1)
		checkStorage(t, reusedStorage, text)
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
	benchmark(b, largeResponse(shortSummaryPath, 30, 2), summaryDecoder(0), "encoding/json", func(text []byte) error {
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
