package decode

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// decoded is a copy of a series.
type decoded struct {
	Labels map[string]string
	Points []Point
	Bad    int
}

func decodeAll(r io.Reader) ([]decoded, *Response, error) {
	var all []decoded
	response, err := Decode(r, func(s *Series) {
		d := decoded{Labels: map[string]string{}, Points: append([]Point(nil), s.Points...), Bad: s.Bad}
		for _, l := range s.Labels {
			d.Labels[string(l.Name)] = string(l.Value)
		}
		all = append(all, d)
	})
	return all, response, err
}

func at(seconds float64) usage.NodeTime {
	return usage.NodeTime(seconds*1000) * usage.NodeTime(time.Millisecond)
}

func TestDecodeResponse(t *testing.T) {
	for _, tc := range []struct {
		name, body string
		want       []decoded
		response   Response
	}{
		{"matrix", `{"status":"success","data":{"resultType":"matrix","result":[
			{"metric":{"__name__":"up","node":"n\u0031\"\\"},"values":[[1795205767.486,"25.5"],[1795205770,"1.65888e+06"]]},
			{"metric":{},"values":[]}]}}`,
			[]decoded{
				{Labels: map[string]string{"__name__": "up", "node": `n1"\`},
					Points: []Point{{at(1795205767.486), 25.5}, {at(1795205770), 1658880}}},
				{Labels: map[string]string{}},
			}, Response{Status: "success", Series: 2}},
		{"vector", `{"data":{"result":[{"value":[1795205767.486,"0"],"metric":{"a":"b"}}],"resultType":"vector"},
			"status":"success"}`,
			[]decoded{{Labels: map[string]string{"a": "b"}, Points: []Point{{at(1795205767.486), 0}}}},
			Response{Status: "success", Series: 1}},
		{"histograms", `{"status":"success","data":{"result":[{"metric":{"a":"b"},"histograms":[[1,{"count":"5","sum":"2.5",
			"buckets":[[0,"1","2","3"]]}]]},{"metric":{},"histogram":[1,{"count":"5"}]}]}}`,
			[]decoded{{Labels: map[string]string{"a": "b"}}, {Labels: map[string]string{}}},
			Response{Status: "success", Series: 2}},
		{"values that are no usage", `{"status":"success","data":{"result":[{"metric":{},"values":[
			[1,"NaN"],[2,"+Inf"],[3,"-1"],[4,"x"],[5,"7"],[5,"8"],[4,"9"],[6,"10"]]}]}}`,
			[]decoded{{Labels: map[string]string{}, Points: []Point{{at(5), 7}, {at(6), 10}}, Bad: 5}},
			Response{Status: "success", Series: 1}},
		{"a surrogate pair and halves of it", `{"status":"success","data":{"result":[
			{"metric":{"a":"\ud83d\ude00 \ud83d \ude00\u0041"}}]}}`,
			[]decoded{{Labels: map[string]string{"a": "😀 � �A"}}}, Response{Status: "success", Series: 1}},
		{"warnings", `{"status":"success","warnings":["no store\u0041"],"infos":["x"],"data":{"result":[]}}`, nil,
			Response{Status: "success", Warning: "no storeA"}},
		{"VictoriaMetrics", `{"status":"success","isPartial":true,"data":{"resultType":"vector","result":[]},
			"stats":{"seriesFetched":"0"}}`,
			nil, Response{Status: "success", Warning: "the response is partial"}},
		{"null", `{"status":"success","data":null,"warnings":null}`, nil, Response{Status: "success"}},
		{"nothing but null", "null", nil, Response{}},
		{"null series", `{"status":"success","data":{"result":[null,{"metric":null,"values":null}]}}`,
			[]decoded{{Labels: map[string]string{}}, {Labels: map[string]string{}}}, Response{Status: "success", Series: 2}},
		{"null strings", `{"status":"success","errorType":null,"error":null,"warnings":[null,"x"],"data":{"result":[
			{"metric":{"a":null}}]}}`,
			[]decoded{{Labels: map[string]string{"a": ""}}}, Response{Status: "success", Warning: "x", Series: 1}},
		{"error", `{"status":"error","errorType":"bad_data","error":"invalid parameter"}`, nil,
			Response{Status: "error", ErrorType: "bad_data", Message: "invalid parameter"}},
	} {
		for _, r := range []io.Reader{strings.NewReader(tc.body), iotest.OneByteReader(strings.NewReader(tc.body))} {
			got, response, err := decodeAll(r)
			if err != nil || !reflect.DeepEqual(got, tc.want) || *response != tc.response {
				t.Errorf("%s:\n got %+v, %+v, %v\nwant %+v, %+v", tc.name, got, response, err, tc.want, tc.response)
			}
		}
	}
}

func TestDecodeRejects(t *testing.T) {
	const complete = `{"status":"success","data":{"resultType":"matrix","result":[` +
		`{"metric":{"a":"b\n\u0041"},"values":[[1.5,"2"]]}]}}`
	for i := range complete {
		if _, _, err := decodeAll(strings.NewReader(complete[:i])); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%q: got %v, want io.ErrUnexpectedEOF", complete[:i], err)
		}
	}
	broken := errors.New("broken")
	unfinished := io.MultiReader(strings.NewReader(`{"status":"success"`), iotest.ErrReader(broken))
	if _, _, err := decodeAll(unfinished); !errors.Is(err, broken) {
		t.Errorf("got %v, want the error of the reader", err)
	}
	endless := `{"status":"` + strings.Repeat("x", 4*maxToken)
	if _, _, err := decodeAll(strings.NewReader(endless)); reason.Of(err) != reason.Truncated {
		t.Errorf("a string without an end: got %v", err)
	}
	for name, body := range map[string]string{
		"HTML":               `<html>login</html>`,
		"a list":             `[1]`,
		"no comma":           `{"status":"success" "data":1}`,
		"a final comma":      `{"status":"success",}`,
		"escape":             `{"status":"\x"}`,
		"half a sample":      `{"data":{"result":[{"metric":{},"value":[1]}]}}`,
		"no time":            `{"data":{"result":[{"metric":{},"value":["x","1"]}]}}`,
		"after its end":      `{} x`,
		"a comma at the end": `{},`,
		"no object":          `]`,
		"a long name":        `{"` + strings.Repeat("x", 1000) + `":nil}`, // not in the error
		"deep":               `{"x":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`,
		"a bad literal":      `{"x":nil}`,
		"a long number":      `{"x":` + strings.Repeat("1", 2*maxToken) + `}`,
		"a label that is no": `{"data":{"result":[{"metric":{"a":1}}]}}`,
	} {
		if _, _, err := decodeAll(strings.NewReader(body)); reason.Of(err) != reason.Undecodable || len(err.Error()) > 200 {
			t.Errorf("%s: got %v, want an error about the JSON", name, err)
		}
	}
}

// TestSeriesOverLimits has one such series between two others. Tenants may write it, so it must not
// make the response unusable.
func TestSeriesOverLimits(t *testing.T) {
	var samples strings.Builder
	for i := range maxPoints {
		fmt.Fprintf(&samples, `[%d,"1"],`, i+1)
	}
	long, longer := strings.Repeat("x", 60<<10), strings.Repeat("x", 1<<20)
	for name, series := range map[string]string{
		"a long value":      `"metric":{"a":"` + longer + `","b":"c"}`,
		"long escapes":      `"metric":{"a":"` + strings.Repeat(`\n\u00e9`, maxToken) + `"}`,
		"a long name":       `"metric":{"` + longer + `":"a"}`,
		"a long last name":  `"metric":{"a":"b","` + longer + `":"a"},"values":[]`,
		"many labels":       `"metric":{` + strings.Repeat(`"a":"b",`, maxLabels) + `"c":"d"}`,
		"many long labels":  `"metric":{"a":"` + long + `","b":"` + long + `"}`,
		"many samples":      `"values":[` + samples.String() + `[9000000000,"1"]]`,
		"labels at the end": `"values":[[1,"1"]],"metric":{"a":"` + longer + `"}`,
	} {
		const other = `{"metric":{"a":"b"},"values":[[1,"2"]]}`
		body := `{"status":"success","x":"` + longer + `","data":{"result":[` + other + `,{` + series + `},` + other + `]}}`
		got, r, err := decodeAll(strings.NewReader(body))
		if err != nil || len(got) != 2 || r.Series != 3 || r.OverLimit != 1 || !reflect.DeepEqual(got[0], got[1]) {
			t.Errorf("%s: got %d series, %+v, %v, want 2 of 3, and one over the limits", name, len(got), r, err)
		}
	}
}

// FuzzDecode compares the decoder with encoding/json: what that accepts must give the same series.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"status":"success","data":{"resultType":"matrix","result":[` +
		`{"metric":{"a":"\ud83d\ude00"},"values":[[1.5,"2"],[3,"4"]]}]}}`))
	f.Add([]byte(`{"status":"success","data":{"result":[{"metric":{"a":"b"},"value":[1.5,"2"]}]},"warnings":["w"]}`))
	f.Add([]byte(`{"status":"error","error":"x","data":null}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		got, r, err := decodeAll(bytes.NewReader(body))
		split, splitResponse, splitErr := decodeAll(iotest.OneByteReader(bytes.NewReader(body)))
		// The text of jsontext's errors may have more or less of the input.
		if reason.Of(err) != reason.Of(splitErr) || !reflect.DeepEqual(got, split) ||
			err == nil && !reflect.DeepEqual(r, splitResponse) {
			t.Fatalf("depends on the size of reads:\n%v %+v\n%v %+v", err, got, splitErr, split)
		}
		if len(body) > maxToken || err != nil {
			return
		}
		var reference struct {
			Data *struct {
				Result []struct {
					Metric map[string]string
				}
			}
		}
		// Keys that differ in case only, or occur twice, are merged by encoding/json.
		if json.Unmarshal(body, &reference) != nil || reference.Data == nil || len(reference.Data.Result) != len(got) {
			return
		}
		for i, want := range reference.Data.Result {
			if len(want.Metric) != len(got[i].Labels) {
				continue
			}
			for name, value := range want.Metric {
				// encoding/json replaces invalid UTF-8.
				if g, ok := got[i].Labels[name]; ok && g != value && !strings.Contains(value, "�") {
					t.Fatalf("label %q: got %q, want %q", name, g, value)
				}
			}
		}
	})
}
