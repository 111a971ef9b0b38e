package encode

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

func (i *Item) writeJSON(w *writer, apiVersion string) error {
	b := appendTypeJSON(w.buffer[:0], string(i.response.kind), apiVersion)
	b = append(b, ',')
	b = i.appendJSON(b, w)
	return w.finish(append(b, "}\n"...))
}

func (l *List) writeJSON(w *writer, apiVersion string) error {
	meta, err := json.Marshal(&l.ListMeta)
	if err != nil {
		return err
	}
	b := appendTypeJSON(w.buffer[:0], string(l.response.kind)+"List", apiVersion)
	b = append(b, `,"metadata":`...)
	b = append(b, meta...)
	b = append(b, `,"items":[`...)
	for i := range l.Items {
		prefetch(l.Items, i)
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '{')
		b = l.Items[i].appendJSON(b, w)
		b = append(b, '}')
		if b, err = w.flushIfFull(b); err != nil {
			return err
		}
	}
	return w.finish(append(b, "]}\n"...))
}

// MetadataJSON returns each Item as a PartialObjectMetadata.
func (l *List) MetadataJSON(apiVersion string) [][]byte {
	w := l.response.encoder.writer(nil, l.response.now)
	defer l.response.encoder.release(w)
	all := make([][]byte, len(l.Items))
	for i := range l.Items {
		prefetch(l.Items, i)
		b := appendTypeJSON(w.buffer[:0], "PartialObjectMetadata", apiVersion)
		b = append(b, `,"metadata":`...)
		w.buffer = append(w.appendMetaJSON(b, &l.Items[i]), '}')
		all[i] = bytes.Clone(w.buffer)
	}
	return all
}

func appendTypeJSON(b []byte, kind, apiVersion string) []byte {
	b = append(b, `{"kind":"`...)
	b = append(b, kind...)
	b = append(b, `","apiVersion":"`...)
	b = append(b, apiVersion...)
	return append(b, '"')
}

// appendJSON appends the members of an Item.
func (i *Item) appendJSON(b []byte, w *writer) []byte {
	b = append(b, `"metadata":`...)
	b = w.appendMetaJSON(b, i)
	end, window := i.Usage.period()
	b = append(b, `,"timestamp":`...)
	b = appendTimeJSON(b, end.Time())
	b = append(b, `,"window":"`...)
	b = appendDuration(b, window)
	b = append(b, `",`...)
	return i.Usage.appendJSON(b, i.Further)
}

// appendMetaJSON appends the metadata of an Item. Empty fields are omitted.
func (w *writer) appendMetaJSON(b []byte, i *Item) []byte {
	o, start := i.Object, len(b)
	if o.Name != "" {
		b = append(b, `,"name":`...)
		b = appendStringJSON(b, o.Name)
	}
	if o.Namespace != "" {
		b = append(b, `,"namespace":`...)
		b = appendStringJSON(b, o.Namespace)
	}
	if w.now != 0 {
		b = append(b, `,"creationTimestamp":`...)
		b = append(b, w.nowJSON...)
	}
	if len(o.Labels) > 0 {
		b = append(b, `,"labels":`...)
		b = append(b, w.encodeLabels(o.Labels, appendLabelsJSON)...)
	}
	if len(b) == start {
		return append(b, "{}"...)
	}
	b[start] = '{' // replaces the first comma
	return append(b, '}')
}

// appendLabelsJSON appends at least one label.
func appendLabelsJSON(b []byte, labels inventory.Labels) []byte {
	start := len(b)
	for key, value := range labels.All() {
		b = append(b, ',')
		b = appendStringJSON(b, key)
		b = append(b, ':')
		b = appendStringJSON(b, value)
	}
	b[start] = '{' // replaces the first comma
	return append(b, '}')
}

func (p *Pod) appendJSON(b []byte, further Further) []byte {
	b = append(b, `"containers":[`...)
	for i := range p.Containers {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"name":`...)
		b = appendStringJSON(b, p.Containers[i].Name)
		b = append(b, ',')
		b = appendUsageJSON(b, &p.Containers[i].Amount, further.of(i))
		b = append(b, '}')
	}
	return append(b, ']')
}

func (n *Node) appendJSON(b []byte, further Further) []byte {
	return appendUsageJSON(b, &n.Amount, further.of(0))
}

func appendUsageJSON(b []byte, a *usage.Amount, further []usage.Resource) []byte {
	if len(further) > 0 {
		return appendResourcesJSON(b, a, further)
	}
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

// appendResourcesJSON is appendUsageJSON with further resources.
func appendResourcesJSON(b []byte, a *usage.Amount, further []usage.Resource) []byte {
	b = append(b, `"usage":`...)
	start := len(b)
	for _, r := range resources(a, further) {
		b = append(b, ',')
		b = appendStringJSON(b, r.name)
		b = append(b, `:"`...)
		b = r.append(b)
		b = append(b, '"')
	}
	b[start] = '{' // replaces the first comma
	return append(b, '}')
}

// appendStringJSON appends a quoted string. Names and labels rarely need escaping.
func appendStringJSON(b []byte, s string) []byte {
	for i := range len(s) {
		if needsEscape(s[i]) {
			escaped, err := json.Marshal(s)
			if err != nil {
				panic(err) // every string can be marshaled
			}
			return append(b, escaped...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// needsEscape reports whether a string with this byte must be encoded by encoding/json. That
// escapes HTML and replaces invalid UTF-8.
func needsEscape(c byte) bool {
	return c < ' ' || c >= utf8.RuneSelf || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&'
}

// appendTimeJSON appends a time in UTC, in whole seconds.
func appendTimeJSON(b []byte, t time.Time) []byte {
	if t.IsZero() {
		return append(b, "null"...)
	}
	b = append(b, '"')
	b = t.AppendFormat(b, time.RFC3339)
	return append(b, '"')
}

// appendDuration appends d.String(). The usual windows are formatted without allocation.
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
