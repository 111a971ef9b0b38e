package api

import (
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// The text written here is byte for byte what encoding/json makes of the typed objects, which is
// what the tests compare it with.

func (e *entry[U]) writeJSON(w *writer, apiVersion string) error {
	b := appendTypeJSON(w.buffer[:0], e.answer.name, apiVersion)
	b = append(b, ',')
	b = e.appendJSON(b, w)
	return w.flush(append(b, "}\n"...))
}

func (l *entryList[U]) writeJSON(w *writer, apiVersion string) error {
	meta, err := json.Marshal(&l.ListMeta)
	if err != nil {
		return err
	}
	b := appendTypeJSON(w.buffer[:0], l.answer.name+"List", apiVersion)
	b = append(b, `,"metadata":`...)
	b = append(b, meta...)
	b = append(b, `,"items":[`...)
	for i := range l.Items {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '{')
		b = l.Items[i].appendJSON(b, w)
		b = append(b, '}')
		if b, err = w.spill(b); err != nil {
			return err
		}
	}
	return w.flush(append(b, "]}\n"...))
}

func appendTypeJSON(b []byte, kind, apiVersion string) []byte {
	b = append(b, `{"kind":"`...)
	b = append(b, kind...)
	b = append(b, `","apiVersion":"`...)
	b = append(b, apiVersion...)
	return append(b, '"')
}

// appendJSON appends the members of an entry.
func (e *entry[U]) appendJSON(b []byte, w *writer) []byte {
	b = append(b, `"metadata":`...)
	b = w.appendMetaJSON(b, e.object)
	end, length := e.answer.period(e.usage)
	b = append(b, `,"timestamp":`...)
	b = w.dates.appendJSON(b, end)
	b = append(b, `,"window":`...)
	b = appendDurationJSON(b, length)
	b = append(b, ',')
	return e.answer.figuresJSON(b, e.usage)
}

// appendMetaJSON appends an object's identity. What is empty is left out.
func (w *writer) appendMetaJSON(b []byte, o *inventory.Object) []byte {
	start := len(b)
	if o.Name != "" {
		b = append(b, `,"name":`...)
		b = appendStringJSON(b, o.Name)
	}
	if o.Namespace != "" {
		b = append(b, `,"namespace":`...)
		b = appendStringJSON(b, o.Namespace)
	}
	if len(w.createdJSON) > 0 {
		b = append(b, `,"creationTimestamp":`...)
		b = append(b, w.createdJSON...)
	}
	if len(o.Labels) > 0 {
		b = append(b, `,"labels":`...)
		b = append(b, w.written(o.Labels, (*writer).appendLabelsJSON)...)
	}
	if len(b) == start {
		return append(b, "{}"...)
	}
	b[start] = '{' // in the place of the first comma
	return append(b, '}')
}

// appendLabelsJSON appends labels, of which there is at least one.
func (w *writer) appendLabelsJSON(b []byte, labels map[string]string) []byte {
	start := len(b)
	for _, l := range w.sorted(labels) {
		b = append(b, ',')
		b = appendStringJSON(b, l.key)
		b = append(b, ':')
		b = appendStringJSON(b, l.value)
	}
	b[start] = '{' // in the place of the first comma
	return append(b, '}')
}

// podFiguresJSON appends the containers of a pod.
func podFiguresJSON(b []byte, p *usage.Pod) []byte {
	b = append(b, `"containers":[`...)
	for i := range p.Containers {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"name":`...)
		b = appendStringJSON(b, p.Containers[i].Name)
		b = append(b, ',')
		b = appendUsageJSON(b, &p.Containers[i].Amount)
		b = append(b, '}')
	}
	return append(b, ']')
}

// nodeFiguresJSON appends the resources of a node.
func nodeFiguresJSON(b []byte, n *usage.Node) []byte { return appendUsageJSON(b, &n.Amount) }

func appendUsageJSON(b []byte, a *usage.Amount) []byte {
	b = append(b, `"usage":{"cpu":"`...)
	b = cpuQuantity(a.CPUNanocores).append(b)
	b = append(b, `","memory":"`...)
	b = bytesQuantity(a.Memory).append(b)
	if a.HasSwap {
		b = append(b, `","swap":"`...)
		b = bytesQuantity(a.Swap).append(b)
	}
	return append(b, `"}`...)
}

// appendStringJSON appends a string in quotes. Names and labels are nearly always plain.
func appendStringJSON(b []byte, s string) []byte {
	for i := range len(s) {
		if !plain(s[i]) {
			return appendOddStringJSON(b, s)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// plain says whether a byte stands for itself in JSON text as Go writes it, which escapes what HTML
// takes for markup.
func plain(c byte) bool {
	return c >= ' ' && c < utf8.RuneSelf && c != '"' && c != '\\' && c != '<' && c != '>' && c != '&'
}

func appendOddStringJSON(b []byte, s string) []byte {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // there is no string that cannot be written
	}
	return append(b, text...)
}

// calendar writes times. It keeps the text of the day, which is seldom another one than before.
type calendar struct {
	day  int64  // since 1970
	text []byte // of the day, as it begins a time in JSON; empty at first
}

// appendJSON appends a time to the second, in UTC.
func (c *calendar) appendJSON(b []byte, t usage.Time) []byte {
	if t == 0 {
		return append(b, "null"...)
	}
	const secondsADay = 24 * 60 * 60
	seconds := floorDiv(int64(t), int64(time.Second))
	day := floorDiv(seconds, secondsADay)
	if day != c.day || len(c.text) == 0 {
		c.day, c.text = day, time.Unix(seconds, 0).UTC().AppendFormat(c.text[:0], `"2006-01-02T`)
	}
	seconds -= day * secondsADay
	b = append(b, c.text...)
	b = append(appendTwoDigits(b, seconds/3600), ':')
	b = append(appendTwoDigits(b, seconds/60%60), ':')
	return append(appendTwoDigits(b, seconds%60), `Z"`...)
}

func appendTwoDigits(b []byte, n int64) []byte { return append(b, byte('0'+n/10), byte('0'+n%10)) }

// floorDiv rounds down, also below zero.
func floorDiv(n, by int64) int64 {
	q := n / by
	if n%by < 0 {
		q--
	}
	return q
}

// appendTimeJSON appends the time of creation, or nothing if there is none.
func appendTimeJSON(b []byte, t metav1.Time) []byte {
	if t.IsZero() {
		return b
	}
	b = append(b, '"')
	b = t.UTC().AppendFormat(b, time.RFC3339)
	return append(b, '"')
}

// appendDurationJSON appends a duration as it prints: "15.001s".
func appendDurationJSON(b []byte, d time.Duration) []byte {
	b = append(b, '"')
	b = appendDuration(b, d)
	return append(b, '"')
}

// appendDuration appends what d.String() gives; the seconds that a window usually has by a shorter
// way.
func appendDuration(b []byte, d time.Duration) []byte {
	if d < time.Second || d >= time.Minute {
		return append(b, d.String()...)
	}
	b = strconv.AppendInt(b, int64(d/time.Second), 10)
	if fraction := d % time.Second; fraction > 0 {
		b = append(b, '.')
		for unit := time.Second / 10; fraction > 0; unit /= 10 {
			b = append(b, byte('0'+fraction/unit))
			fraction %= unit
		}
	}
	return append(b, 's')
}
