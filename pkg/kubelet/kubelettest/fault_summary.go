package kubelettest

import (
	"bytes"
	"net/http"
	"regexp"
	"slices"
	"time"
)

// EditSummary alters the JSON of the summary.
func EditSummary(edit func(json []byte) []byte) Fault {
	return func(a *Answer) {
		if a.summary {
			a.Body = edit(a.Body)
		}
	}
}

// SummaryValue puts one value, as it is to stand in the JSON, into all fields of the summary that
// have this name and are numbers or strings. The rate usageNanoCores is "0" where a kubelet does
// not know it.
func SummaryValue(field, value string) Fault {
	pattern := regexp.MustCompile(scalar(field))
	return EditSummary(func(json []byte) []byte {
		return pattern.ReplaceAllLiteral(json, []byte(`"`+field+`": `+value))
	})
}

// DropSummaryValue leaves those fields out.
func DropSummaryValue(field string) Fault {
	is := scalar(field)
	pattern := regexp.MustCompile(`,\s*` + is + `|` + is + `,\s*|` + is)
	return EditSummary(func(json []byte) []byte { return pattern.ReplaceAllLiteral(json, nil) })
}

// scalar is the pattern of a field of this name that is a number or a string.
func scalar(field string) string { return `"` + regexp.QuoteMeta(field) + `": ("[^"]*"|[^",{}[\]\s]+)` }

// ShiftSummaryTime moves all times of the summary.
func ShiftSummaryTime(by time.Duration) Fault {
	pattern := regexp.MustCompile(`"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"`)
	return EditSummary(func(json []byte) []byte {
		return pattern.ReplaceAllFunc(json, func(quoted []byte) []byte {
			at, err := time.Parse(`"`+time.RFC3339+`"`, string(quoted))
			if err != nil {
				return quoted // a name that looks like a time
			}
			return at.Add(by).AppendFormat(nil, `"`+time.RFC3339+`"`)
		})
	})
}

// containerStart is the start time of a container in the summary, up to the time of its CPU sample.
// The node and pods have other fields between both.
var containerStart = regexp.MustCompile(`("name": "[^"]*",\s*"startTime": ")([^"]+)(",\s*"cpu": \{\s*"time": ")([^"]+)`)

// editSummaryStarts alters the start times of containers, given the time of their last sample.
func editSummaryStarts(a *Answer, edit func(start, sample time.Time) time.Time) {
	EditSummary(func(json []byte) []byte {
		return containerStart.ReplaceAllFunc(json, func(match []byte) []byte {
			parts := containerStart.FindSubmatch(match)
			start, err1 := time.Parse(time.RFC3339, string(parts[2]))
			at, err2 := time.Parse(time.RFC3339, string(parts[4]))
			if err1 != nil || err2 != nil {
				return match // altered by another fault
			}
			start = edit(start, at).UTC()
			return slices.Concat(parts[1], start.AppendFormat(nil, time.RFC3339), parts[3], parts[4])
		})
	})(a)
}

// CutSummary ends the summary in its middle, with a length that agrees.
func CutSummary(a *Answer) {
	EditSummary(func(json []byte) []byte { return json[:len(json)/2] })(a)
}

// OtherSummary answers with valid JSON that is no summary.
func OtherSummary(a *Answer) {
	EditSummary(func([]byte) []byte {
		return []byte(`{"kind": "Status", "node": [1, true], "pods": {"items": null}, "code": 200}`)
	})(a)
}

// EndlessNesting opens arrays without end.
func EndlessNesting(a *Answer) {
	a.Body = bytes.Repeat([]byte{'['}, 4<<10)
	EndlessBody(a)
}

// EndlessBlanks sends nothing but blanks without end.
func EndlessBlanks(a *Answer) {
	a.Body = bytes.Repeat([]byte{' '}, 4<<10)
	EndlessBody(a)
}

// SummaryFaults lists every way of misbehaving in the summary that is known, with typical
// parameters, for tests that try them all. Other answers are not affected.
func SummaryFaults() []NamedFault {
	faults := append(faultsOfAny(), []NamedFault{
		{"status 405", Status(http.StatusMethodNotAllowed), true},
		{"cut", CutSummary, true},
		{"other JSON", OtherSummary, true},
		{"endless nesting", EndlessNesting, true},
		{"endless blanks", EndlessBlanks, true},
		{"of another node", SummaryValue("nodeName", `"elsewhere"`), true},
		{"placeholder rates", SummaryValue("usageNanoCores", "0"), false},
		{"no rates", DropSummaryValue("usageNanoCores"), false},
		{"null rates", SummaryValue("usageNanoCores", "null"), false},
		{"impossible rates", SummaryValue("usageNanoCores", "18446744073709551615"), false},
		{"negative counters", SummaryValue("usageCoreNanoSeconds", "-1"), false},
		{"memory in words", SummaryValue("workingSetBytes", `"1Mi"`), false},
		{"no start time", DropSummaryValue("startTime"), false},
		{"times of tomorrow", ShiftSummaryTime(24 * time.Hour), true},
		{"times of yesterday", ShiftSummaryTime(-24 * time.Hour), false},
		{"no times", DropSummaryValue("time"), false},
	}...)
	for i := range faults {
		faults[i].Fault = OnlyAt(SummaryPath, faults[i].Fault)
	}
	return faults
}
