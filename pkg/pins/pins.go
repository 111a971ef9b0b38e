package pins

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/internal/command"
)

const (
	// authority is stored instead of a key if a CA has verified the kubelet's certificate.
	authority = "ca"
	// storeTimeout is how long Pin waits. It is less than the timeout of a scrape, so that the error
	// names what is missing.
	storeTimeout = 3 * time.Second
	// maxBytes bounds the ConfigMap as sizeOf measures it. etcd accepts requests of 1.5 MiB.
	maxBytes = 1280 << 10
)

// Config configures Pins. All fields are required.
type Config struct {
	ConfigMaps      corev1client.ConfigMapInterface // of the namespace
	Namespace, Name string                          // of the ConfigMap

	// IsCurrent reports whether the node is known to exist with this UID: every node whose kubelet is
	// scraped is. ReadUID reads the UID of a node from the API server, not from a cache; "": there is no
	// such node. Entries of nodes that neither knows are removed.
	IsCurrent func(node string, uid types.UID) bool
	ReadUID   func(ctx context.Context, node string) (types.UID, error)
}

// Pins are the pinned keys of kubelets. Run keeps them in sync with the ConfigMap. All methods can
// be called concurrently.
type Pins struct {
	Config
	wake   chan struct{} // receives an element when something must be written
	writes flowcontrol.RateLimiter

	mu      sync.RWMutex
	read    bool              // whether the ConfigMap has been read
	object  *corev1.ConfigMap // as last read; nil: it does not exist; not modified
	pins    map[string]pin    // in use, by node
	wanted  map[string]pin    // to be stored, by node
	changed chan struct{}     // closed when the ConfigMap has been read again
	created int64             // number of keys that this process pinned

	readErr, writeErr error // of the last request; nil: it succeeded
}

// pin is the key of a node's kubelet.
type pin struct {
	uid types.UID // of the Node; "" if the entry cannot be parsed
	key string    // or authority
}

func (p pin) String() string { return p.key + " " + string(p.uid) }

// entry matches a value of the ConfigMap.
var entry = regexp.MustCompile(`^\s*(ca|sha256:[0-9a-fA-F]{64})\s+(\S+)\s*$`)

// parse parses a value of the ConfigMap.
func parse(value string) pin {
	parts := entry.FindStringSubmatch(value)
	if parts == nil {
		return pin{}
	}
	return pin{types.UID(parts[2]), strings.ToLower(parts[1])}
}

// New returns Pins that wait for Run.
func New(c Config) *Pins {
	return &Pins{
		Config:  c,
		wake:    make(chan struct{}, 1),
		writes:  flowcontrol.NewTokenBucketRateLimiter(writesPerSecond, writeBurst),
		wanted:  map[string]pin{},
		changed: make(chan struct{}),
	}
}

// Check reports whether the key is pinned for the node. It returns an error if the node must have
// another key. Neither is true if the node has no pin yet.
func (p *Pins) Check(node string, uid types.UID, key string) (pinned bool, err error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	known, ok := p.pins[node]
	switch {
	case !ok:
		return false, nil
	case known.uid == "":
		return false, fmt.Errorf("the entry %s of ConfigMap %s/%s is not \"sha256:KEY UID\": correct or remove it",
			node, p.Namespace, p.Name)
	case known.uid != uid:
		return false, nil
	case known.key == key:
		return true, nil
	}
	found := "its key is pinned as " + known.key
	if known.key == authority {
		found = "a CA has verified an earlier certificate of this node"
	}
	accepted := pin{types.UID(command.Name(string(uid), "UID")), key}
	return false, fmt.Errorf("it has the key %s, but %s; to accept the new key: kubectl -n %s patch configmap %s "+
		"--type=merge -p 'data: {%s: %s}'", key, found, p.Namespace, p.Name,
		yamlKey(command.Name(node, "NODE")), accepted)
}

// yamlKey returns the name of a node as a key in YAML, which reads 010 as 8 and no as false. It uses
// a tag, because the log would escape quotes.
func yamlKey(node string) string {
	var value any
	if err := yaml.Unmarshal([]byte(node), &value); err == nil {
		if _, isString := value.(string); isString {
			return node
		}
	}
	return "!!str " + node
}

// Pin pins the key of a node that has no pin, and returns once it is stored. The caller has verified
// that the kubelet has the private key.
func (p *Pins) Pin(ctx context.Context, node string, uid types.UID, key string) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	for {
		changed := p.nextChange() // before Check, so that no change is missed
		pinned, err := p.Check(node, uid, key)
		if pinned || err != nil {
			return err
		}
		p.want(node, pin{uid, key})
		select {
		case <-changed:
		case <-ctx.Done():
			return p.notStored()
		}
	}
}

// Verified notes that a CA has verified the certificate of a node's kubelet. It does not wait until
// that is stored.
func (p *Pins) Verified(node string, uid types.UID) {
	if known, _ := p.Check(node, uid, authority); !known {
		p.want(node, pin{uid, authority})
	}
}

// nextChange returns a channel that is closed when the ConfigMap has been read again.
func (p *Pins) nextChange() <-chan struct{} {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.changed
}

// want asks Run to store a pin, unless the node has one. The first key of a node counts.
func (p *Pins) want(node string, new pin) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pins := range []map[string]pin{p.pins, p.wanted} {
		if known, ok := pins[node]; ok && known.uid == new.uid && (known.key == authority || new.key != authority) {
			return
		}
	}
	p.wanted[strings.Clone(node)] = new
	p.wakeUp()
}

func (p *Pins) wakeUp() {
	select {
	case p.wake <- struct{}{}:
	default: // Run has not handled an earlier one yet
	}
}

// notStored returns why a pin has not been stored in time.
func (p *Pins) notStored() error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	action := "written"
	if !p.read {
		action = "read"
	}
	err := fmt.Errorf("ConfigMap %s/%s has not been %s yet", p.Namespace, p.Name, action)
	if reason := cmp.Or(p.readErr, p.writeErr); reason != nil {
		err = fmt.Errorf("%w: %w", err, reason)
	}
	return err
}

// set applies the content of the ConfigMap, and logs the nodes whose keys have been pinned since the
// last call. If the ConfigMap does not exist (nil), the pins stay in use until it exists again.
func (p *Pins) set(ctx context.Context, object *corev1.ConfigMap) {
	var pinned []string
	stored := map[string]pin{}
	if object != nil {
		for node, value := range object.Data {
			stored[node] = parse(value)
		}
	}
	p.mu.Lock()
	if object == nil {
		stored = p.pins
	}
	for node, wanted := range p.wanted {
		found, ok := stored[node]
		if !ok || found.uid != wanted.uid && found.uid != "" || wanted.key == authority && found.key != authority {
			continue
		}
		// What the first read returns was pinned before: nothing is written until then.
		if p.read && found == wanted && found.key != authority && p.pins[node] != found {
			pinned = append(pinned, node)
		}
		delete(p.wanted, node)
	}
	p.created += int64(len(pinned))
	p.object, p.pins, p.read = object, stored, true
	if len(p.wanted) > 0 {
		p.wakeUp()
	}
	close(p.changed)
	p.changed = make(chan struct{})
	p.mu.Unlock()
	if len(pinned) > 0 {
		slices.Sort(pinned)
		klog.FromContext(ctx).Info("Pinned the keys of kubelets at first sight", "count", len(pinned),
			"nodes", pinned[:min(len(pinned), 10)])
	}
}

// record sets the error of the last request that reads or writes, and logs it once.
func (p *Pins) record(ctx context.Context, last *error, err error) {
	p.mu.Lock()
	before := *last
	*last = err
	p.mu.Unlock()
	logger := klog.FromContext(ctx).WithValues("configMap", klog.KRef(p.Namespace, p.Name))
	switch {
	case ctx.Err() != nil:
	case err == nil && before != nil:
		logger.Info("The ConfigMap of the pinned keys of kubelets can be used again")
	case err != nil && (before == nil || before.Error() != err.Error()):
		logger.Error(err, "Cannot use the ConfigMap of the pinned keys of kubelets; known keys stay in use")
	}
}

// hasWork reports whether something must be stored or removed.
func (p *Pins) hasWork(deleted map[string]pin) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.wanted, func(node string, wanted pin) bool { return !p.IsCurrent(node, wanted.uid) })
	maps.DeleteFunc(deleted, func(node string, old pin) bool { return p.pins[node] != old })
	return p.read && len(p.wanted)+len(deleted) > 0
}

// next returns the ConfigMap with what must be stored and without the entries of deleted nodes, or nil if
// nothing can be stored, and an error unless all of it can.
func (p *Pins) next(deleted map[string]pin) (object *corev1.ConfigMap, err error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.object == nil {
		return nil, errors.New("it does not exist: create it with \"helm upgrade\" or from the manifests; all keys are " +
			"then pinned again at first sight")
	}
	object = p.object.DeepCopy()
	if object.Data == nil {
		object.Data = map[string]string{}
	}
	maps.DeleteFunc(object.Data, func(node, value string) bool {
		old, isDeleted := deleted[node]
		return isDeleted && parse(value) == old
	})
	size := 0
	for node, value := range object.Data {
		size += sizeOf(node, value)
	}
	for node, wanted := range p.wanted {
		value := wanted.String()
		grown := size + sizeOf(node, value)
		if before, exists := object.Data[node]; exists {
			grown -= sizeOf(node, before)
		}
		if grown > maxBytes {
			err = fmt.Errorf("it is full with %d entries: set serverTLSBootstrap in the configuration of the kubelets, then "+
				"check and approve their certificate requests, because no more nodes can be pinned", len(object.Data))
			continue
		}
		size, object.Data[node] = grown, value
	}
	if maps.Equal(p.object.Data, object.Data) {
		object = nil
	}
	return object, err
}

// sizeOf returns about the number of bytes of an entry: its name is stored in the managed fields, too.
func sizeOf(node, value string) int { return 2*len(node) + len(value) + 20 }

// Stats are numbers about Pins.
type Stats struct {
	Keys, Authorities int   // nodes with a pinned key, and nodes that a CA has verified
	Created           int64 // keys that this process has pinned at first sight
}

// Stats returns the current numbers.
func (p *Pins) Stats() Stats {
	p.mu.RLock()
	defer p.mu.RUnlock()
	s := Stats{Created: p.created}
	for _, known := range p.pins {
		switch {
		case known.key == authority:
			s.Authorities++
		case known.uid != "":
			s.Keys++
		}
	}
	return s
}

// findDeleted returns the entries of deleted nodes: those that the API server does not have. It reads
// each node later than the entry, so it finds a new node that another replica has pinned, however
// late this replica's watch of nodes is.
func (p *Pins) findDeleted(ctx context.Context) map[string]pin {
	p.mu.RLock()
	deleted := maps.Clone(p.pins)
	p.mu.RUnlock()
	maps.DeleteFunc(deleted, func(node string, known pin) bool { return known.uid == "" || p.IsCurrent(node, known.uid) })
	for node, known := range deleted {
		uid, err := p.ReadUID(ctx, node)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Cannot read a node: pinned keys of deleted nodes are kept for now",
				"configMap", klog.KRef(p.Namespace, p.Name), "count", len(deleted))
			return nil
		}
		if uid == known.uid {
			delete(deleted, node)
		}
	}
	return deleted
}
