package conformance

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"time"
)

// WriteText writes a report for people: a line for each check; for a check that did not pass, also
// the reason and the source.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	for i := range r.Results {
		b.WriteString(r.Results[i].Text())
	}
	fmt.Fprintf(&b, "\nKubernetes %s, metrics.k8s.io %s, profile %s\n", r.Kubernetes, strings.Join(r.Versions, " and "),
		r.Profile)
	for _, p := range profiles {
		if r.Profile.includes(p) {
			fmt.Fprintf(&b, "%-12s %s\n", p, r.Summary(p))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Text returns the lines of a result in the text report.
func (r *Result) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-11s %-11s %-26s %s\n", r.Status, r.Profile, r.ID, r.Title)
	if r.Status != Passed {
		for line := range strings.SplitSeq(r.Message, "\n") {
			fmt.Fprintf(&b, "    %s\n", line)
		}
	}
	if r.Status == Failed {
		fmt.Fprintf(&b, "    source: %s, %s\n", r.Source.Text, r.Source.URL)
	}
	return b.String()
}

// Summary returns the numbers of results of a profile, such as "3 passed, 1 failed".
func (r *Report) Summary(p Profile) string {
	var parts []string
	for _, s := range []Status{Passed, Failed, Unsupported, Skipped} {
		if n := r.Count(p, s); n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		}
	}
	return strings.Join(parts, ", ")
}

// WriteJSON writes the report as JSON.
func (r *Report) WriteJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}

type junitSuite struct {
	XMLName   xml.Name    `xml:"testsuite"`
	Name      string      `xml:"name,attr"`
	Tests     int         `xml:"tests,attr"`
	Failures  int         `xml:"failures,attr"`
	Skipped   int         `xml:"skipped,attr"`
	Timestamp string      `xml:"timestamp,attr"`
	Cases     []junitCase `xml:"testcase"`
}

type junitCase struct {
	Name    string        `xml:"name,attr"`
	Class   string        `xml:"classname,attr"`
	Seconds string        `xml:"time,attr"`
	Failure *junitMessage `xml:"failure"`
	Skipped *junitMessage `xml:"skipped"`
}

type junitMessage struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// WriteJUnit writes the report as JUnit XML. An extension that the server does not have is skipped
// there.
func (r *Report) WriteJUnit(w io.Writer) error {
	suite := junitSuite{
		Name: "metrics.k8s.io", Tests: len(r.Results), Failures: r.Count("", Failed),
		Skipped: r.Count("", Skipped) + r.Count("", Unsupported), Timestamp: r.Started.Format(time.RFC3339),
	}
	for i := range r.Results {
		result := &r.Results[i]
		c := junitCase{
			Name: result.ID + ": " + result.Title, Class: "metrics.k8s.io." + string(result.Profile),
			Seconds: fmt.Sprintf("%.3f", result.Seconds),
		}
		message := &junitMessage{Message: result.Message, Text: "source: " + result.Source.Text + ", " + result.Source.URL}
		switch result.Status {
		case Failed:
			c.Failure = message
		case Skipped, Unsupported:
			c.Skipped = message
		}
		suite.Cases = append(suite.Cases, c)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	encoder := xml.NewEncoder(w)
	encoder.Indent("", "  ")
	if err := encoder.Encode(suite); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}
