package pins

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/internal/backoff"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

const (
	fieldManager = "kube-vitals"
	// batchDelay is how long a write waits for further pins. minInterval is the least time between two
	// writes: when 1000 nodes are scraped for the first time, there are about 10.
	batchDelay  = 50 * time.Millisecond
	minInterval = 500 * time.Millisecond
	// watchDelay is how long the watch may take to report a write.
	watchDelay = 5 * time.Second
	// writeTimeout bounds one request.
	writeTimeout = 10 * time.Second
	// writeBurst is the number of writes at once, for example after a start. Then follow
	// writesPerSecond, so that a controller that undoes the writes does not cause a flood.
	writeBurst      = 30
	writesPerSecond = 0.2
	// pruneInterval is the time between two searches for entries of deleted nodes.
	pruneInterval = 10 * time.Minute
	// minBackoff, maxWriteBackoff and maxReadBackoff are the shortest and longest times between a failed
	// write or read and the next one.
	minBackoff      = time.Second
	maxWriteBackoff = 30 * time.Second
	maxReadBackoff  = 8 * time.Second
)

// Run keeps the pins in sync with the ConfigMap until the context ends. It must be called once.
func (p *Pins) Run(ctx context.Context) {
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { p.reflector(ctx).RunWithContext(ctx) })
	prune := time.NewTicker(pruneInterval)
	defer prune.Stop()
	retry := backoff.New(minBackoff, maxWriteBackoff)
	for {
		select {
		case <-ctx.Done():
			return
		case <-prune.C:
			p.markDeleted(ctx)
			continue
		case <-p.wake:
		}
		backoff.Sleep(ctx, batchDelay, nil)
		if !p.hasWork() || p.writes.Wait(ctx) != nil { // the context ended
			continue
		}
		changed := p.nextChange() // before the write, which the watch reports
		if err := p.write(ctx); err != nil {
			backoff.Sleep(ctx, retry.Step(), changed)
		} else {
			retry = backoff.New(minBackoff, maxWriteBackoff)
			backoff.Sleep(ctx, watchDelay, changed)
		}
		p.wakeUp() // something may be left
		backoff.Sleep(ctx, minInterval, nil)
	}
}

// write stores what must be stored, and returns an error unless all of it could be.
func (p *Pins) write(ctx context.Context) error {
	current, listErr := p.confirm(ctx)
	object, pinned, err := p.next(current)
	err = errors.Join(listErr, err)
	if object != nil {
		requestCtx, cancel := context.WithTimeout(ctx, writeTimeout)
		defer cancel()
		_, writeErr := p.ConfigMaps.Update(requestCtx, object, metav1.UpdateOptions{FieldManager: fieldManager})
		switch {
		case apierrors.IsConflict(writeErr):
			return nil // another replica was faster: the watch reports what it has stored
		case apierrors.IsForbidden(writeErr):
			err = &reason.Error{
				Reason: reason.TLSNotPinned,
				Err:    fmt.Errorf("cannot write it: %w", writeErr),
				Cure:   "give the ServiceAccount permission to list, watch and update the ConfigMap",
			}
		case writeErr != nil:
			err = fmt.Errorf("cannot write it: %w", writeErr)
		case len(pinned) > 0:
			p.created.Add(int64(len(pinned)))
			slices.Sort(pinned)
			klog.FromContext(ctx).Info("Pinned the keys of kubelets at first sight", "count", len(pinned),
				"nodes", pinned[:min(len(pinned), 10)])
		}
	}
	p.record(ctx, &p.writeErr, &p.writeLog, err)
	return err
}

// reflector returns a watch of the ConfigMap.
func (p *Pins) reflector(ctx context.Context) *cache.Reflector {
	only := fields.OneTermEqualSelector(metav1.ObjectNameField, p.Name).String()
	record := func(err error) {
		// The URL has a random timeout, so with it an outage would be logged again and again.
		if failed, ok := errors.AsType[*url.Error](err); ok {
			err = failed.Err
		}
		if err != nil {
			err = fmt.Errorf("cannot read it: %w", err)
		}
		p.record(ctx, &p.readErr, &p.readLog, err)
	}
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.FieldSelector = only
			list, err := p.ConfigMaps.List(ctx, options)
			if err == nil && list.ResourceVersion == "" {
				err = errors.New("the response is not a list: it has no resource version")
			}
			record(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = only
			events, err := p.ConfigMaps.Watch(ctx, options)
			record(err)
			return events, err
		},
	}
	changed := func(objects []any) {
		if len(objects) == 0 {
			p.set(nil)
		} else if object, ok := objects[0].(*corev1.ConfigMap); ok { // the only one, by the field selector
			p.set(object)
		}
	}
	return cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(source, p.ConfigMaps),
		&corev1.ConfigMap{}, cache.NewUndeltaStore(changed, cache.MetaNamespaceKeyFunc),
		cache.ReflectorOptions{Name: "pins", Backoff: backoff.New(minBackoff, maxReadBackoff)})
}
