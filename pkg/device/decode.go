package device

import (
	"bufio"
	"bytes"
	"errors"
	"hash/maphash"
	"io"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

const (
	// maxBody is the maximum size of a response. A node with 8 GPUs in 56 instances and 100 series of
	// each has 2.5 MB. Responses are decoded while they arrive, so the limit bounds time, not memory.
	maxBody = 16 << 20
	// maxLine is the maximum length of a line. The labels of dcgm-exporter have some 500 bytes.
	maxLine = 16 << 10
	// maxSeries is the maximum number of series of one response that are configured.
	maxSeries = 1 << 13
	// maxLabelWork is the maximum of the sum of the squares of the numbers of labels of these series:
	// expfmt compares the labels of a series with each other. 500 series may have 64 labels each.
	maxLabelWork = 1 << 21
)

// skip is the reason why a series was skipped.
type skip int

// The reasons for skipping a series.
const (
	malformed  skip = iota // without a valid value or timestamp
	badValue               // NaN, infinite, negative, or above the limit of the resource
	stale                  // with a timestamp that is too old
	duplicate              // the response already had the same series
	unknownPod             // of a container that the API server does not have on the exporter's node
	numSkips   = iota
)

// String returns the reason's name in metrics of kube-vitals.
func (s skip) String() string {
	return [numSkips]string{"malformed", "bad_value", "stale", "duplicate", "unknown_container"}[s]
}

// response is what a response has.
type response struct {
	containers []store.ContainerResource
	found      []bool // for each resource, whether the response has its series
	series     []int  // of each resource, the number of valid lines with different labels
	age        time.Duration
	skipped    [numSkips]int
}

// The errors of responses.
var (
	errTooLarge      = errors.New("the response is larger than 16 MiB")
	errTooManySeries = errors.New("the response has more than 8192 series of the configured names, or too many labels")
	errUnreadable    = errors.New("a line of a series has invalid labels or more than 16 KiB: any pod may own it")
	errCut           = errors.New("the last line of the response has no end, so the response may be cut")
	errNoSeries      = errors.New("the response has none of the configured series")
)

// decoder decodes one response.
type decoder struct {
	exporter *Exporter
	series   map[string][]int                            // indexes of resources, by name of the series
	isKnown  func(namespace, pod, container string) bool // on the exporter's node
	sentAt   time.Time                                   // of the response, by the exporter's clock
	maxAge   time.Duration                               // of timestamps in the response

	parser expfmt.TextParser
	line   bytes.Reader
	seed   maphash.Seed
	seen   map[uint64]float64 // values of series, by hash
	index  map[key]int        // of values in response.containers
	unread map[key]bool       // pods with a device whose value of the resource is not valid; without container
	out    response
}

// key identifies a value of a response.
type key struct {
	namespace, pod, container string
	resource                  int
}

// decode decodes a response in the text exposition format. Lines of other series than the
// configured ones are skipped unread. Each of the others is parsed alone, so that memory does not
// depend on the size of the response. A line that has labels but no valid value affects its pod only.
func (d *decoder) decode(body io.Reader) (*response, error) {
	d.parser = expfmt.NewTextParser(model.UTF8Validation)
	d.seed, d.seen, d.index, d.unread = maphash.MakeSeed(), map[uint64]float64{}, map[key]int{}, map[key]bool{}
	d.out.found, d.out.series = make([]bool, len(d.exporter.Resources)), make([]int, len(d.exporter.Resources))
	limited := &io.LimitedReader{R: body, N: maxBody + 1}
	lines := bufio.NewReaderSize(limited, maxLine)
	count, labelWork := 0, 0
	for {
		line, err := lines.ReadSlice('\n')
		if resources := d.series[string(nameOf(line))]; resources != nil {
			count++
			labels := bytes.Count(line, []byte{'='}) // or fewer
			labelWork += labels * labels
			if count > maxSeries || labelWork > maxLabelWork {
				return nil, errTooManySeries
			}
			if errors.Is(err, bufio.ErrBufferFull) {
				return nil, errUnreadable
			}
			if err == nil {
				err = d.add(resources, line)
			}
		}
		for errors.Is(err, bufio.ErrBufferFull) {
			line, err = lines.ReadSlice('\n')
		}
		if limited.N == 0 {
			return nil, errTooLarge
		}
		if errors.Is(err, io.EOF) {
			if len(line) > 0 {
				return nil, errCut
			}
			break
		}
		if err != nil {
			return nil, err
		}
	}
	if count == 0 {
		return nil, errNoSeries
	}
	d.dropUnread()
	return &d.out, nil
}

// dropUnread drops the values of pods with a device whose value is not valid: without it, the usage
// would be too low.
func (d *decoder) dropUnread() {
	if len(d.unread) == 0 {
		return
	}
	kept := make([]store.ContainerResource, 0, len(d.out.containers))
	for k, i := range d.index {
		k.container = ""
		if !d.unread[k] {
			kept = append(kept, d.out.containers[i])
		}
	}
	d.out.containers = kept
}

// nameOf returns the name of the series in a line, or nothing in a comment.
func nameOf(line []byte) []byte {
	line = bytes.TrimLeft(line, " \t")
	if end := bytes.IndexAny(line, "{ \t\n"); end >= 0 {
		return line[:end]
	}
	return line
}

// add adds the values of a line. It returns an error if the line may be of any pod.
func (d *decoder) add(resources []int, line []byte) error {
	for _, i := range resources {
		d.out.found[i] = true
	}
	metric := d.parse(line)
	if metric == nil {
		d.out.skipped[malformed]++
		if metric = d.parse(withoutValue(line)); metric == nil {
			return errUnreadable
		}
		d.markUnread(d.keyOf(metric), resources)
		return nil
	}
	k, value := d.keyOf(metric), metric.GetUntyped().GetValue()
	if isKnown, isSame := d.isDuplicate(line, value); isKnown {
		d.out.skipped[duplicate]++
		if !isSame {
			d.markUnread(k, resources)
		}
		return nil
	}
	for _, i := range resources {
		d.out.series[i]++
	}
	if k.namespace == "" || k.pod == "" || k.container == "" {
		return nil // a device that no container uses
	}
	if !d.isKnown(k.namespace, k.pod, k.container) {
		d.out.skipped[unknownPod]++
		return nil
	}
	if metric.TimestampMs != nil {
		age := max(d.sentAt.Sub(time.UnixMilli(metric.GetTimestampMs())), 0)
		if age > d.maxAge {
			d.out.skipped[stale]++
			d.markUnread(k, resources)
			return nil
		}
		d.out.age = max(d.out.age, age)
	}
	for i, r := range resources {
		k.resource = r
		value, ok := d.exporter.Resources[r].convert(value)
		if !ok {
			d.out.skipped[badValue]++
			d.markUnread(k, resources[i:i+1])
			continue
		}
		d.combine(k, value)
	}
	return nil
}

// keyOf returns the container of a series, as far as its labels name one.
func (d *decoder) keyOf(metric *dto.Metric) key {
	return key{
		namespace: labelOf(metric, d.exporter.Labels.Namespace),
		pod:       labelOf(metric, d.exporter.Labels.Pod),
		container: labelOf(metric, d.exporter.Labels.Container),
	}
}

// markUnread notes that a pod has a device whose value of the resources is not known.
func (d *decoder) markUnread(k key, resources []int) {
	for _, i := range resources {
		d.unread[key{k.namespace, k.pod, "", i}] = true
	}
}

// withoutValue returns a line with the labels of another one, and the value 0. It returns nil if the
// other line has no labels.
func withoutValue(line []byte) []byte {
	end := bytes.LastIndexByte(line, '}')
	if end < 0 {
		return nil
	}
	return append(bytes.Clone(line[:end+1]), " 0\n"...)
}

// parse parses one line. It returns nil if that is not possible.
func (d *decoder) parse(line []byte) *dto.Metric {
	d.line.Reset(line)
	families, err := d.parser.TextToMetricFamilies(&d.line)
	if err != nil {
		d.parser = expfmt.NewTextParser(model.UTF8Validation) // the old one may keep labels of this line
		return nil
	}
	for _, family := range families {
		if len(family.Metric) == 1 {
			return family.Metric[0]
		}
	}
	return nil
}

// isDuplicate reports whether the response had the series of a valid line before, and whether it had
// the same value then. Exporters write the labels of a series in the same order each time.
func (d *decoder) isDuplicate(line []byte, value float64) (isKnown, isSame bool) {
	end := bytes.LastIndexByte(line, '}')
	if end < 0 {
		end = len(nameOf(line))
	}
	hash := maphash.Bytes(d.seed, line[:end])
	before, isKnown := d.seen[hash]
	if !isKnown {
		d.seen[hash] = value
	}
	return isKnown, before == value
}

// combine adds the value of one device to that of the container.
func (d *decoder) combine(k key, value uint64) {
	r := &d.exporter.Resources[k.resource]
	at, found := d.index[k]
	if !found {
		d.index[k] = len(d.out.containers)
		d.out.containers = append(d.out.containers, store.ContainerResource{
			Namespace: k.namespace, Pod: k.pod, Container: k.container,
			Resource: usage.Resource{Name: r.Resource, Value: value, Unit: r.unit()},
		})
		return
	}
	c := &d.out.containers[at]
	if r.Combine == combineMax {
		c.Value = max(c.Value, value)
	} else {
		c.Value += value
	}
}

// labelOf returns the value of the first of the labels that the series has with a value.
func labelOf(metric *dto.Metric, names []string) string {
	for _, name := range names {
		for _, label := range metric.Label {
			if label.GetName() == name && label.GetValue() != "" {
				return label.GetValue()
			}
		}
	}
	return ""
}
