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
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/kube-vitals/kube-vitals/internal/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

const (
	// downloadProcess is the helper process that downloads the responses of all kubelets once per
	// interval, over verified connections that stay open, and discards them.
	downloadProcess = "download"
	downloadFile    = "download.json" // its result
)

// download is the CPU of one response in milliseconds. Requests that are spread over the interval,
// as those of a server, cost several times as much as requests without pauses: the core has gone to
// sleep and its caches are cold.
type download struct {
	Spread   float64
	Gzip     float64 // spread, with compression
	Unspread float64
	Size     int64 // of one response in bytes, without compression
}

// measureDownload runs the helper process.
func (b *bench) measureDownload(ctx context.Context) (d download, err error) {
	logf("measuring a client that only downloads, over 2 × %d intervals", b.rounds)
	timeout := time.Duration(2*b.rounds+4)*b.resolution + time.Minute
	text, err := b.runSelf(ctx, timeout, downloadFile, downloadProcess,
		"-rounds="+strconv.Itoa(b.rounds), "-interval="+b.resolution.String())
	if err != nil {
		return d, err
	}
	return d, json.Unmarshal(text, &d)
}

// runDownload is the helper process.
func runDownload(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet(downloadProcess, flag.ContinueOnError)
	dir := flags.String("dir", "", "the folder of the cluster")
	nodes := flags.Int("nodes", 0, "number of kubelets")
	rounds := flags.Int("rounds", 0, "number of measured intervals")
	interval := flags.Duration("interval", 0, "time for one request to every kubelet")
	if err := flags.Parse(args); err != nil {
		return err
	}
	urls, roots, err := kubeletURLs(*dir, *nodes)
	if err != nil {
		return err
	}
	var d download
	for _, run := range []struct {
		gzip     bool
		interval time.Duration
		cpu      *float64
	}{
		{false, *interval, &d.Spread},
		{true, *interval, &d.Gzip},
		{false, 0, &d.Unspread},
	} {
		client := &http.Client{Transport: &http.Transport{
			TLSClientConfig:    &tls.Config{RootCAs: roots},
			DisableCompression: !run.gzip,
		}}
		if *run.cpu, d.Size, err = downloadRounds(ctx, client, urls, *rounds, run.interval); err != nil {
			return err
		}
		client.CloseIdleConnections()
	}
	text, err := json.Marshal(d)
	if err != nil {
		return err
	}
	if err := writeFile(*dir, downloadFile, text); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// kubeletURLs returns the URLs of all kubelets and the CA that signed their certificates.
func kubeletURLs(dir string, nodes int) (urls []string, roots *x509.CertPool, err error) {
	pem, err := os.ReadFile(filepath.Join(dir, cluster.KubeletCAFile))
	if err != nil {
		return nil, nil, err
	}
	port, err := os.ReadFile(filepath.Join(dir, portFile))
	if err != nil {
		return nil, nil, err
	}
	for i := range nodes {
		host := net.JoinHostPort(kubelettest.Address(i).String(), string(port))
		urls = append(urls, "https://"+host+kubelettest.ResourcePath)
	}
	roots = x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, nil, errors.New("the CA of the kubelets has no certificate")
	}
	return urls, roots, nil
}

// downloadRounds returns the median CPU of a response in milliseconds and the size of the last one.
func downloadRounds(
	ctx context.Context, client *http.Client, urls []string, rounds int, interval time.Duration,
) (cpu float64, size int64, err error) {
	for range 4 { // Go's TLS sends small records for the first 128 KiB of a connection
		if _, err := downloadAll(ctx, client, urls, interval/4); err != nil {
			return 0, 0, err
		}
	}
	var cpus []float64
	for range rounds {
		before := ownCPUTime()
		if size, err = downloadAll(ctx, client, urls, interval); err != nil {
			return 0, 0, err
		}
		cpus = append(cpus, milliseconds(ownCPUTime()-before)/float64(len(urls)))
	}
	return median(cpus), size, nil
}

// downloadAll sends one request to each URL, evenly over the interval.
func downloadAll(
	ctx context.Context, client *http.Client, urls []string, interval time.Duration,
) (size int64, err error) {
	start := time.Now()
	for i, url := range urls {
		if err := sleep(ctx, time.Until(start.Add(interval*time.Duration(i)/time.Duration(len(urls))))); err != nil {
			return 0, err
		}
		if size, err = downloadOne(ctx, client, url); err != nil {
			return 0, err
		}
	}
	return size, sleep(ctx, time.Until(start.Add(interval)))
}

func downloadOne(ctx context.Context, client *http.Client, url string) (size int64, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s: %s", url, response.Status)
	}
	return io.Copy(io.Discard, response.Body)
}

// ownCPUTime returns the CPU time of this process. It is more precise than /proc.
func ownCPUTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // it only fails for wrong arguments
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
