package pins

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/internal/command"
	"github.com/kube-vitals/kube-vitals/pkg/internal/failure"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
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
	// scraped is. ListNodes reads the UIDs of all nodes from the API server, not from a cache. Entries of
	// nodes that neither knows are removed, and entries of a name only replaced if ListNodes has the new UID.
	IsCurrent func(node string, uid types.UID) bool
	ListNodes func(ctx context.Context) (map[string]types.UID, error)
}

// Pins are the pinned keys of kubelets. Run keeps them in sync with the ConfigMap. All methods can
// be called concurrently.
type Pins struct {
	Config
	wake    chan struct{} // receives an element when something must be written
	writes  flowcontrol.RateLimiter
	created atomic.Int64 // number of keys that this process pinned

	mu      sync.RWMutex
	read    bool              // whether the ConfigMap has been read
	object  *corev1.ConfigMap // as last read; nil: it does not exist; not modified
	pins    map[string]pin    // in use, by node
	wanted  map[string]pin    // to be stored, by node
	deleted map[string]pin    // of deleted nodes, to be removed, by node
	changed chan struct{}     // closed when the ConfigMap has been read again

	readErr, writeErr error       // of the last request; nil: it succeeded
	readLog, writeLog failure.Log // of Run
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
	log := failure.Log{
		Failing:   "Cannot use the ConfigMap of the pinned keys of kubelets; known keys stay in use",
		Recovered: "The ConfigMap of the pinned keys of kubelets can be used again",
	}
	return &Pins{
		Config:  c,
		wake:    make(chan struct{}, 1),
		writes:  flowcontrol.NewTokenBucketRateLimiter(writesPerSecond, writeBurst),
		wanted:  map[string]pin{},
		deleted: map[string]pin{},
		changed: make(chan struct{}),
		readLog: log, writeLog: log,
	}
}

// Check reports whether the key is pinned for the node. It returns an error with the reason TLSKeyChanged
// if the node must have another key. Neither is true if the node has no pin yet.
func (p *Pins) Check(node string, uid types.UID, key string) (pinned bool, err error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	known, ok := p.pins[node]
	switch {
	case !ok:
		return false, nil
	case known.uid == "":
		return false, &reason.Error{
			Reason: reason.TLSKeyChanged,
			Err:    fmt.Errorf("the entry %s of ConfigMap %s/%s is not \"sha256:KEY UID\"", node, p.Namespace, p.Name),
			Cure:   "correct or remove the entry",
		}
	case known.uid != uid:
		return false, nil
	case known.key == key:
		return true, nil
	}
	found := "its key is pinned as " + known.key
	if known.key == authority {
		found = "a CA has verified an earlier certificate of this node"
	}
	return false, &reason.Error{
		Reason:  reason.TLSKeyChanged,
		Err:     fmt.Errorf("it has the key %s, but %s", key, found),
		Command: command.AcceptKey(p.Namespace, p.Name, node, string(uid), key),
	}
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
	if why := cmp.Or(p.readErr, p.writeErr); why != nil {
		err = fmt.Errorf("%w: %w", err, why)
	}
	return err
}

// set applies the content of the ConfigMap. If it does not exist (nil), the pins stay in use until it
// exists again.
func (p *Pins) set(object *corev1.ConfigMap) {
	stored := map[string]pin{}
	if object != nil {
		for node, value := range object.Data {
			stored[node] = parse(value)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if object == nil {
		stored = p.pins
	}
	maps.DeleteFunc(p.wanted, func(node string, wanted pin) bool {
		found, ok := stored[node]
		return ok && (found.uid == wanted.uid || found.uid == "") && (wanted.key != authority || found.key == authority)
	})
	maps.DeleteFunc(p.deleted, func(node string, old pin) bool { return stored[node] != old })
	p.object, p.pins, p.read = object, stored, true
	if len(p.wanted) > 0 {
		p.wakeUp()
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// record sets the error of the last request that reads or writes, and logs it once.
func (p *Pins) record(ctx context.Context, last *error, log *failure.Log, err error) {
	p.mu.Lock()
	*last = err
	p.mu.Unlock()
	logger := klog.FromContext(ctx).WithValues("configMap", klog.KRef(p.Namespace, p.Name))
	switch {
	case ctx.Err() != nil:
	case err == nil:
		log.NoteError(logger, nil)
	default:
		why := reason.TLSNotPinned.Describe().Explain(err)
		why.Problem = "" // the message has it
		log.Note(logger, err.Error(), why)
	}
}

// hasWork reports whether something must be stored.
func (p *Pins) hasWork() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.wanted, func(node string, wanted pin) bool { return !p.IsCurrent(node, wanted.uid) })
	return p.read && len(p.wanted)+len(p.deleted) > 0
}

// next returns the ConfigMap with what must be stored, or nil if it cannot be stored, the nodes whose keys it
// pins, and an error unless all of it can be stored. It replaces a pin only with that of a current Node.
func (p *Pins) next(current map[string]types.UID) (object *corev1.ConfigMap, pinned []string, err error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.object == nil {
		return nil, nil, &reason.Error{
			Reason: reason.TLSNotPinned,
			Err:    errors.New("it does not exist"),
			Cure: "create it with \"helm upgrade\" or from the manifests; all keys are then pinned again at first " +
				"sight",
		}
	}
	object = p.object.DeepCopy()
	if object.Data == nil {
		object.Data = map[string]string{}
	}
	for node := range p.deleted {
		delete(object.Data, node)
	}
	size := 0
	for node, value := range object.Data {
		size += sizeOf(node, value)
	}
	for node, wanted := range p.wanted {
		if p.replaces(node, wanted) && current[node] != wanted.uid {
			continue
		}
		value := wanted.String()
		grown := size + sizeOf(node, value)
		if before, exists := object.Data[node]; exists {
			grown -= sizeOf(node, before)
		}
		if grown > maxBytes {
			err = &reason.Error{
				Reason: reason.TLSNotPinned,
				Err:    fmt.Errorf("it is full with %d entries, so no more nodes can be pinned", len(object.Data)),
				Cure: "set serverTLSBootstrap in the configuration of the kubelets, then check and approve their " +
					"certificate requests",
			}
			continue
		}
		size, object.Data[node] = grown, value
		if wanted.key != authority {
			pinned = append(pinned, node)
		}
	}
	if maps.Equal(p.object.Data, object.Data) {
		object = nil
	}
	return object, pinned, err
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
	s := Stats{Created: p.created.Load()}
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

// replaces reports whether a wanted pin would replace that of a Node with the same name and another UID.
func (p *Pins) replaces(node string, wanted pin) bool {
	known, exists := p.pins[node]
	return exists && known.uid != wanted.uid
}

// confirm returns the UIDs of all nodes in the API server, if a wanted pin replaces one, and drops wanted pins of
// earlier nodes: if this replica's watch of nodes is late, the entry is that of the newer Node.
func (p *Pins) confirm(ctx context.Context) (current map[string]types.UID, err error) {
	p.mu.RLock()
	needed := false
	for node, wanted := range p.wanted {
		needed = needed || p.replaces(node, wanted)
	}
	p.mu.RUnlock()
	if !needed {
		return nil, nil
	}
	if current, err = p.ListNodes(ctx); err != nil {
		return nil, fmt.Errorf("cannot list the nodes before keys of earlier ones are replaced: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.wanted, func(node string, wanted pin) bool {
		return p.replaces(node, wanted) && current[node] != wanted.uid
	})
	return current, nil
}

// markDeleted asks Run to remove the entries of deleted nodes: those that the API server does not list. The
// list is newer than the entries, so it has each new node that another replica has pinned, however
// late this replica's watch of nodes is.
func (p *Pins) markDeleted(ctx context.Context) {
	p.mu.RLock()
	deleted := maps.Clone(p.pins)
	p.mu.RUnlock()
	maps.DeleteFunc(deleted, func(node string, known pin) bool { return known.uid == "" || p.IsCurrent(node, known.uid) })
	if len(deleted) == 0 {
		return
	}
	current, err := p.ListNodes(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot list the nodes: pinned keys of deleted nodes are kept for now",
			"configMap", klog.KRef(p.Namespace, p.Name), "count", len(deleted))
		return
	}
	maps.DeleteFunc(deleted, func(node string, known pin) bool { return current[node] == known.uid })
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(deleted, func(node string, known pin) bool { return p.pins[node] != known }) // changed meanwhile
	maps.Copy(p.deleted, deleted)
	p.wakeUp()
}
