package device

import (
	"bufio"
	"bytes"
	"errors"
	"hash/maphash"
	"io"
	"time"
	"unicode/utf8"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/decode"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
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
)

// The reasons for skipping a series, as in metrics of kube-vitals.
const (
	malformed  = "malformed"         // without a valid value or timestamp
	badValue   = "bad_value"         // NaN, infinite, negative, or above the limit of the resource
	stale      = "stale"             // with a timestamp that is too old
	duplicate  = "duplicate"         // the response already had the same series
	unknownPod = "unknown_container" // of a container that the API server does not have on the exporter's node
)

// response is what a response has.
type response struct {
	containers []usage.ContainerResource
	series     []int // of each resource, the number of valid lines with different labels
	age        time.Duration
	skipped    map[string]int // number of series, by reason
}

// count returns the number of valid lines with different labels, each as often as resources use it.
func (r *response) count() int {
	sum := 0
	for _, n := range r.series {
		sum += n
	}
	return sum
}

// The errors of responses.
var (
	errTooManySeries = reason.Errorf(reason.BodyTooLarge, "the response has more than 8192 series of the configured names")
	errUnreadable    = reason.Errorf(reason.Undecodable,
		"a line of a series has invalid labels or more than 16 KiB: any pod may own it")
	errCut = reason.Errorf(reason.Truncated,
		"the last line of the response has no end, so the response may be cut")
	errShorter = reason.Errorf(reason.Truncated,
		"the response has neither a length nor chunks, and fewer series than the one before, so it may be cut")
	errNoSeries = reason.Errorf(reason.NoSamples, "the response has none of the configured series")
)

// decoder decodes one response.
type decoder struct {
	group  *group
	node   string
	sentAt time.Time // of the response, by the exporter's clock

	labels map[string]string // of the current line: those that identify the container
	seed   maphash.Seed
	seen   map[uint64]float64 // values of series, by hash
	values map[key]uint64     // of containers
	unread map[key]bool       // pods with a device whose value of the resource is not valid; without container
	out    response
}

// key identifies a value of a response.
type key struct {
	namespace, pod, container string
	resource                  int // its index
}

// decode decodes a response in the text exposition format. Lines of other series than the
// configured ones are skipped unread. Each of the others is parsed alone, so that memory does not
// depend on the size of the response. A line that has labels but no valid value affects its pod only.
func (d *decoder) decode(body io.Reader) (*response, error) {
	d.labels = map[string]string{}
	d.seed, d.seen, d.values, d.unread = maphash.MakeSeed(), map[uint64]float64{}, map[key]uint64{}, map[key]bool{}
	d.out.series, d.out.skipped = make([]int, len(d.group.Resources)), map[string]int{}
	lines := bufio.NewReaderSize(body, maxLine)
	count := 0
	for {
		line, err := lines.ReadSlice('\n')
		if resources := d.group.series[string(nameOf(line))]; resources != nil {
			if count++; count > maxSeries {
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
	for k, value := range d.values {
		// Without a device whose value is not valid, the usage of a pod would be too low.
		if r := &d.group.Resources[k.resource]; !d.unread[key{k.namespace, k.pod, "", k.resource}] {
			d.out.containers = append(d.out.containers, usage.ContainerResource{
				Namespace: k.namespace, Pod: k.pod, Container: k.container,
				Resource: usage.Resource{Name: r.Resource, Value: value, Unit: r.unit()},
			})
		}
	}
	return &d.out, nil
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
	id := d.idOf(line)
	k, value, ok, err := d.parse(line)
	if err != nil {
		return err
	}
	isKnown := d.group.source.IsKnown(d.node, k.namespace, k.pod, k.container)
	if !ok {
		d.out.skipped[malformed]++
		if isKnown {
			d.markUnread(k, resources)
		}
		return nil
	}
	if before, isDuplicate := d.seen[id]; isDuplicate {
		d.out.skipped[duplicate]++
		if before != value.Float && isKnown {
			d.markUnread(k, resources)
		}
		return nil
	}
	d.seen[id] = value.Float
	for _, i := range resources {
		d.out.series[i]++
	}
	if k.namespace == "" || k.pod == "" || k.container == "" {
		return nil // a device that no container uses
	}
	if !isKnown {
		d.out.skipped[unknownPod]++
		return nil
	}
	if value.Timed {
		age := max(d.sentAt.Sub(time.UnixMilli(value.Millis)), 0)
		if g := d.group; age > g.MaxAge-g.Interval-g.Timeout { // else it lasts until the next scrape
			d.out.skipped[stale]++
			d.markUnread(k, resources)
			return nil
		}
		d.out.age = max(d.out.age, age)
	}
	for i, r := range resources {
		resource := &d.group.Resources[r]
		value, ok := resource.convert(value.Float)
		if !ok {
			d.out.skipped[badValue]++
			d.markUnread(k, resources[i:i+1])
			continue
		}
		k.resource = r
		if resource.Combine == combineMax {
			d.values[k] = max(d.values[k], value)
		} else {
			d.values[k] += value
		}
	}
	return nil
}

// markUnread notes that a known pod has a device whose value of the resources is not known.
func (d *decoder) markUnread(k key, resources []int) {
	for _, i := range resources {
		d.unread[key{k.namespace, k.pod, "", i}] = true
	}
}

// parse parses a line of a series. ok is not set if only its labels are valid.
func (d *decoder) parse(line []byte) (k key, value decode.Value, ok bool, err error) {
	clear(d.labels)
	rest := bytes.TrimLeft(bytes.TrimSuffix(line, []byte{'\n'}), " \t")
	rest = bytes.TrimLeft(rest[len(nameOf(rest)):], " \t")
	n, _, ok := decode.ParseLabels(rest, d.addLabel)
	if !ok {
		return k, value, false, errUnreadable
	}
	names := &d.group.Labels
	k = key{namespace: d.label(names.Namespace), pod: d.label(names.Pod), container: d.label(names.Container)}
	if value, _, ok = decode.ParseValue(rest[n:]); !ok && n == 0 {
		return k, value, false, errUnreadable
	}
	return k, value, ok, nil
}

// addLabel adds a label of the current line if it identifies the container, and rejects duplicates of
// those. Others may repeat: dcgm-exporter copies the labels of a pod, whose user may name one "gpu".
func (d *decoder) addLabel(name, value []byte) bool {
	if !utf8.Valid(value) {
		return false
	}
	if d.group.Labels.has(name) {
		if _, known := d.labels[string(name)]; known {
			return false
		}
		d.labels[string(name)] = string(value)
	}
	return true
}

// label returns the value of the first of the labels that the current line has with a value.
func (d *decoder) label(names []string) string {
	for _, name := range names {
		if value := d.labels[name]; value != "" {
			return value
		}
	}
	return ""
}

// idOf returns a hash of the name and the labels in a line. Exporters write the labels of a series in
// the same order each time.
func (d *decoder) idOf(line []byte) uint64 {
	end := bytes.LastIndexByte(line, '}')
	if end < 0 {
		end = len(nameOf(line))
	}
	return maphash.Bytes(d.seed, line[:end])
}
