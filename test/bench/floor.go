package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

// floorFile is where the floor's process leaves its result.
const floorFile = "floor.json"

// floorResult is what fetching a node's answer costs at least: milliseconds of CPU. Spread over the
// interval, as a server does it, each fetch finds a core asleep and caches cold, and so costs
// several times as much as in a row.
type floorResult struct {
	Plain float64 `json:"plainMilliseconds"`
	Gzip  float64 `json:"gzipMilliseconds"`       // decompression included
	InRow float64 `json:"plainInRowMilliseconds"` // one fetch right after the other
	Bytes int64   `json:"bytes"`                  // of one answer, not compressed
}

// measureFloor runs the floor's process to its end.
func measureFloor(ctx context.Context, cfg config, w *cluster.Cluster, r *result, progress func(string, ...any)) error {
	progress("measuring the floor over 2 × %d intervals", cfg.rounds)
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("this program does not know where it is: %w", err)
	}
	p, err := w.StartProcess(self, "floor", "--nodes="+strconv.Itoa(r.Nodes), "--dir="+w.Dir,
		"--rounds="+strconv.Itoa(cfg.rounds), "--interval="+cfg.resolution.String())
	if err != nil {
		return err
	}
	limit := time.Duration(2*cfg.rounds+4)*cfg.resolution + time.Minute
	return p.Poll(ctx, limit, "the floor to be measured", func(context.Context) error {
		text, err := os.ReadFile(w.File(floorFile))
		if err != nil {
			return err
		}
		return json.Unmarshal(text, &r.Floor)
	})
}

// floor is a process of its own, which does what a server cannot do without: each node's answer is
// fetched once an interval, over a kept-alive connection with TLS verified, and thrown away.
func floor(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("floor", flag.ContinueOnError)
	nodes := flags.Int("nodes", 0, "how many kubelets there are")
	dir := flags.String("dir", "", "the cluster's folder")
	rounds := flags.Int("rounds", 0, "how many intervals to measure, each")
	interval := flags.Duration("interval", 0, "how long to take for all nodes")
	if err := flags.Parse(args); err != nil {
		return err
	}
	urls, roots, err := targets(*dir, *nodes)
	if err != nil {
		return err
	}
	var r floorResult
	for _, way := range []struct {
		gzip   bool
		spread time.Duration
		cost   *float64
	}{
		{false, *interval, &r.Plain},
		{true, *interval, &r.Gzip},
		{false, 0, &r.InRow},
	} {
		client := &http.Client{Transport: &http.Transport{
			TLSClientConfig:    &tls.Config{RootCAs: roots},
			DisableCompression: !way.gzip,
		}}
		*way.cost, r.Bytes, err = fetchRounds(ctx, client, urls, *rounds, way.spread)
		if err != nil {
			return err
		}
		client.CloseIdleConnections()
	}
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := writeWhole(filepath.Join(*dir, floorFile), text); err != nil {
		return fmt.Errorf("the floor cannot be told: %w", err)
	}
	<-ctx.Done()
	return nil
}

// targets says where the kubelets answer, and whom to trust.
func targets(dir string, nodes int) (urls []string, roots *x509.CertPool, err error) {
	pem, err := os.ReadFile(filepath.Join(dir, cluster.KubeletCAFile))
	if err != nil {
		return nil, nil, fmt.Errorf("the kubelets' CA is not known: %w", err)
	}
	port, err := os.ReadFile(filepath.Join(dir, portFile))
	if err != nil {
		return nil, nil, fmt.Errorf("the kubelets' port is not known: %w", err)
	}
	for i := range nodes {
		urls = append(urls, "https://"+kubelettest.Address(i).String()+":"+strings.TrimSpace(string(port))+kubelettest.ResourcePath)
	}
	roots = x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, nil, errors.New("the kubelets' CA has no certificate")
	}
	return urls, roots, nil
}

// fetchRounds connects to all, and then fetches from each once a round, which is spread over a
// time. It returns the median of milliseconds of CPU a fetch, and the size of the last answer in
// bytes.
func fetchRounds(
	ctx context.Context, client *http.Client, urls []string, rounds int, spread time.Duration,
) (cost float64, size int64, err error) {
	// Servers send short TLS records on a new connection, for the first 128 KiB.
	for range 4 {
		if _, err := fetchAll(ctx, client, urls, spread/4); err != nil {
			return 0, 0, err
		}
	}
	var costs []float64
	for range rounds {
		before := ownCPUTime()
		if size, err = fetchAll(ctx, client, urls, spread); err != nil {
			return 0, 0, err
		}
		costs = append(costs, milliseconds(ownCPUTime()-before)/float64(len(urls)))
	}
	return median(costs), size, nil
}

// fetchAll fetches from each once, evenly spread over a time, and returns the size of the last
// answer in bytes.
func fetchAll(ctx context.Context, client *http.Client, urls []string, spread time.Duration) (size int64, err error) {
	began := time.Now()
	for i, url := range urls {
		if err := sleep(ctx, time.Until(began.Add(spread*time.Duration(i)/time.Duration(len(urls))))); err != nil {
			return 0, err
		}
		if size, err = fetch(ctx, client, url); err != nil {
			return 0, err
		}
	}
	return size, sleep(ctx, time.Until(began.Add(spread)))
}

// fetch gets an answer, and throws it away.
func fetch(ctx context.Context, client *http.Client, url string) (size int64, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, err
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	size, err = io.Copy(io.Discard, response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return 0, fmt.Errorf("%s: %w", url, err)
	}
	if response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s answers %s", url, response.Status)
	}
	return size, nil
}

// ownCPUTime is for how long this process has used a core, in user and in kernel mode.
func ownCPUTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(fmt.Sprintf("getrusage of oneself cannot fail, but does: %v", err))
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
