package page

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/kube-vitals/kube-vitals/pkg/nodez"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

var screenshots = flag.String("screenshots", "", "`folder` for screenshots of the page; empty: none")

// timeout bounds one test. Only one that fails waits so long: beside 50 busy processes, a test needs 3 minutes.
const timeout = 20 * time.Minute

// errNoBrowser is why there is no browser.
var errNoBrowser = errors.New("no Chromium: install it, for example with apt-get install chromium")

// browser is the Chromium of all tests.
type browser struct {
	context.Context
	stop func()
	err  error
}

var startBrowser = sync.OnceValue(func() *browser {
	var path string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		return &browser{stop: func() {}, err: errNoBrowser}
	}
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(path),
		chromedp.WSURLReadTimeout(timeout), chromedp.Flag("lang", "en"))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium has no sandbox for root
	}
	allocator, stopAllocator := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancel := chromedp.NewContext(allocator)
	b := &browser{Context: ctx, stop: func() { cancel(); stopAllocator() }}
	b.err = chromedp.Do(ctx)
	return b
})

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	startBrowser().stop()
	os.Exit(code)
}

// newTab opens a tab, and skips the test if there is no browser. CI must have one.
func newTab(t *testing.T) context.Context {
	t.Helper()
	b := startBrowser()
	if errors.Is(b.err, errNoBrowser) && os.Getenv("CI") == "" {
		t.Skip(b.err)
	}
	if b.err != nil {
		t.Fatal(b.err)
	}
	ctx, cancel := chromedp.NewContext(b)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, timeout)
	t.Cleanup(cancel)
	return ctx
}

// site serves the page of a report that tests can replace.
type site struct {
	*httptest.Server
	report   atomic.Pointer[nodez.Report]
	requests atomic.Int64
	down     atomic.Bool
}

func newSite(t *testing.T, r *nodez.Report) *site {
	t.Helper()
	s := &site{}
	s.report.Store(r)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path != "/nodez" {
			http.NotFound(w, q)
			return
		}
		s.requests.Add(1)
		if s.down.Load() {
			http.Error(w, "forbidden: no permission", http.StatusForbidden)
			return
		}
		var body strings.Builder
		policy, err := nodez.WriteHTML(&body, s.report.Load())
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", policy)
		fmt.Fprint(w, body.String())
	}))
	t.Cleanup(s.Close)
	return s
}

// messages collects the errors and violations of the policy that a page logs.
type messages struct {
	mu   sync.Mutex
	text []string
}

func watch(t *testing.T, ctx context.Context) *messages {
	t.Helper()
	m := &messages{}
	add := func(text string) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.text = append(m.text, text)
	}
	err := chromedp.Listen(ctx, func(event any) {
		switch e := event.(type) {
		case *log.EventEntryAdded:
			if !strings.Contains(e.Entry.URL, "/favicon.ico") {
				add(e.Entry.Text + " " + e.Entry.URL)
			}
		case *runtime.EventExceptionThrown:
			add(e.ExceptionDetails.Text)
		}
	})
	must(t, err)
	return m
}

func (m *messages) check(t *testing.T) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, text := range m.text {
		t.Errorf("the page logs: %s", text)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// action is a step of a user.
type action = chromedp.Action[chromedp.Void]

func run(t *testing.T, ctx context.Context, actions ...action) {
	t.Helper()
	must(t, chromedp.Do(ctx, actions...))
}

// evaluate returns the value of an expression in the page.
func evaluate[T any](t *testing.T, ctx context.Context, expression string) (value T) {
	t.Helper()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	must(t, err)
	return value
}

const (
	visibleNames = `[...document.querySelectorAll('#nodes tbody th')].map((th) => th.textContent)`
	shownText    = `document.getElementById('shown').textContent`
)

func column(key string) string { return fmt.Sprintf(`th[data-key="%s"] button`, key) }

func chip(filter, value string) string {
	return fmt.Sprintf(`.chips button[data-filter="%s"][data-value="%s"]`, filter, value)
}

func click(selector string) action { return chromedp.Click(chromedp.CSS(selector)) }

func typeText(text string) action { return chromedp.SendKeys(chromedp.CSS("#query"), text) }

// await waits until an expression is true in the page.
func await(expression string) action {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := chromedp.Poll[bool](expression)(ctx, t)
		return err
	})
}

// cells returns the sort values of a column.
func cells(t *testing.T, ctx context.Context, n int) []float64 {
	t.Helper()
	return evaluate[[]float64](t, ctx, fmt.Sprintf(`[...document.querySelectorAll('#nodes tbody td:nth-child(%d)')].`+
		`filter((td) => td.dataset.v).map((td) => Number(td.dataset.v))`, n))
}

// open shows a page of a report in a new tab.
func open(t *testing.T, report *nodez.Report, path string) (*site, context.Context, *messages) {
	t.Helper()
	site, ctx := newSite(t, report), newTab(t)
	log := watch(t, ctx)
	run(t, ctx, chromedp.EmulateViewport(1440, 900), chromedp.Navigate(site.URL+path))
	return site, ctx, log
}

func TestFailingNodeIsFoundInTwoClicks(t *testing.T) {
	report := newReport(5000)
	_, ctx, log := open(t, report, "/nodez")
	run(t, ctx, click(chip("reason", "clock-skew")), click("#nodes tbody summary"),
		chromedp.WaitVisible(chromedp.CSS("#nodes tbody pre")))
	text := evaluate[string](t, ctx, `document.querySelector('#nodes tbody details[open]').innerText`)
	if !strings.Contains(text, "no sample of the kubelet has a valid time") {
		t.Errorf("two clicks show %q", text)
	}
	want := fmt.Sprintf("%d of the first 500 of 5,000 nodes", report.Totals.Reasons["clock-skew"])
	if got := evaluate[string](t, ctx, shownText); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if hash := evaluate[string](t, ctx, `location.hash`); hash != "#reason=clock-skew" {
		t.Errorf("the fragment is %q", hash)
	}
	log.check(t)
}

// TestManyNodes checks that the server lists the first 500 nodes, those that fail among them, and that
// a line below them has the number of the others.
func TestManyNodes(t *testing.T) {
	report := newReport(1200)
	site, ctx, log := open(t, report, "/nodez#reason=clock-skew")
	if got := evaluate[string](t, ctx, shownText); got != "5 of the first 500 of 1,200 nodes" {
		t.Errorf("got %q with a filter", got)
	}
	run(t, ctx, click(chip("reason", "clock-skew"))) // removes the filter
	if got := evaluate[string](t, ctx, shownText); got != "the first 500 of 1,200 nodes" {
		t.Errorf("got %q without a filter", got)
	}
	if names := evaluate[[]string](t, ctx, visibleNames); len(names) != 500 {
		t.Errorf("%d nodes are shown, want 500", len(names))
	}
	const failing = `document.querySelectorAll('#nodes tbody tr[data-state="failing"]').length`
	if n := evaluate[int](t, ctx, failing); n != report.Totals.FailingNodes {
		t.Errorf("%d failing nodes are shown, want %d", n, report.Totals.FailingNodes)
	}
	const more = `document.getElementById('more').innerText`
	const links = `[...document.querySelectorAll('#more a')].map((a) => a.href)`
	if got := evaluate[string](t, ctx, more); got != "700 more nodes are not listed here. All are in text and JSON." {
		t.Errorf("below the table is %q", got)
	}
	want := []string{site.URL + "/nodez?format=text", site.URL + "/nodez?format=json"}
	if got := evaluate[[]string](t, ctx, links); !slices.Equal(got, want) {
		t.Errorf("below the table are links to %q, want %q", got, want)
	}
	site.report.Store(newReport(3))
	run(t, ctx, click("#reload"), await(shownText+` === '3 nodes'`))
	if !evaluate[bool](t, ctx, `document.getElementById('more').hidden`) {
		t.Error("the line below the table stays when all nodes are listed")
	}
	log.check(t)
}

func TestSort(t *testing.T) {
	site, ctx, log := open(t, newReport(500), "/nodez")
	states := cells(t, ctx, 2)
	if len(states) != 500 || !slices.IsSorted(states) || states[0] != 0 {
		t.Errorf("the failing nodes are not first: %v", states)
	}
	ariaSort := func(key string) string {
		return evaluate[string](t, ctx, fmt.Sprintf(
			`document.querySelector('th[data-key="%s"]').getAttribute('aria-sort') ?? ''`, key))
	}
	for i, key := range []string{"age", "success", "next", "duration", "pods", "samples", "skew"} {
		run(t, ctx, click(column(key)))
		values := cells(t, ctx, i+3)
		slices.Reverse(values)
		if len(values) < 400 || !slices.IsSorted(values) || ariaSort(key) != "descending" || ariaSort("state") != "" {
			t.Errorf("%s: not in descending order, or not marked as such: %v", key, values)
		}
		run(t, ctx, click(column(key)))
		if !slices.IsSorted(cells(t, ctx, i+3)) || ariaSort(key) != "ascending" {
			t.Errorf("%s: not in ascending order, or not marked as such", key)
		}
	}
	run(t, ctx, click(column("node")))
	names := evaluate[[]string](t, ctx, visibleNames)
	if len(names) != 500 || !strings.HasPrefix(names[0], "ip-10-0-0-10.") ||
		!strings.HasPrefix(names[499], "ip-10-0-3-125.") {
		t.Errorf("not sorted by the numbers in names: %s … %s", names[0], names[len(names)-1])
	}
	// The order is part of the address.
	run(t, ctx, chromedp.Navigate("about:blank"), chromedp.Navigate(site.URL+"/nodez#sort=-node"))
	if names := evaluate[[]string](t, ctx, visibleNames); !strings.HasPrefix(names[0], "ip-10-0-3-125.") {
		t.Errorf("the fragment does not sort: %s is first", names[0])
	}
	log.check(t)
}

func TestFilter(t *testing.T) {
	site, ctx, log := open(t, newReport(500), "/nodez")
	run(t, ctx, typeText("10.0.3.4 READY"))
	if got := evaluate[string](t, ctx, shownText); got != "10 of 500 nodes" { // 10.0.3.40 to 49
		t.Errorf("the filter shows %q", got)
	}
	run(t, ctx, chromedp.Navigate("about:blank"), chromedp.Navigate(site.URL+"/nodez"), typeText("refused"))
	names := evaluate[[]string](t, ctx, visibleNames)
	if len(names) == 0 || len(names) > 5 {
		t.Errorf("the filter finds %d nodes by their error", len(names))
	}
	run(t, ctx, click(chip("state", "ready")))
	if got := evaluate[string](t, ctx, shownText); got != "0 of 500 nodes" {
		t.Errorf("both filters show %q", got)
	}
	pressed := evaluate[[]string](t, ctx,
		`[...document.querySelectorAll('[aria-pressed="true"]')].map((b) => b.dataset.value)`)
	if !slices.Equal(pressed, []string{"ready"}) {
		t.Errorf("the pressed chips are %q", pressed)
	}
	log.check(t)
}

func TestRefresh(t *testing.T) {
	site, ctx, _ := open(t, newReport(500), "/nodez")
	run(t, ctx, click(chip("state", "failing")), click("#nodes tbody summary"))
	if n := site.requests.Load(); n != 1 {
		t.Errorf("the page was requested %d times", n)
	}
	names := evaluate[[]string](t, ctx, visibleNames)
	next := newReport(500)
	for i := range next.Nodes {
		if next.Nodes[i].Name != names[0] {
			next.Nodes[i].State, next.Nodes[i].Reason = nodez.Ready, ""
		}
	}
	next.Version = "v9"
	site.report.Store(next)
	run(t, ctx, click("#reload"), await(`document.querySelectorAll('#nodes tbody tr').length === 1`))
	if got := evaluate[[]string](t, ctx, visibleNames); !slices.Equal(got, names[:1]) {
		t.Errorf("after a refresh, the failing nodes are %q, want %q", got, names[:1])
	}
	if !evaluate[bool](t, ctx, `document.querySelector('#nodes details').open`) {
		t.Error("a refresh closes the details")
	}
	site.down.Store(true)
	run(t, ctx, click("#reload"), await(`document.querySelector('.refresh .error')?.textContent.includes('403') ?? false`))
	if got := evaluate[[]string](t, ctx, visibleNames); !slices.Equal(got, names[:1]) {
		t.Errorf("a failed refresh shows %q", got)
	}
}

// TestDeviceExporters checks that the exporters of devices are shown, and that their table stays open
// after a refresh.
func TestDeviceExporters(t *testing.T) {
	report := newReport(3)
	report.DeviceExporters = []nodez.DeviceExporter{{Name: "dcgm", Namespace: "gpu-operator", Pods: []nodez.DevicePod{
		{Node: report.Nodes[0].Name, Name: "dcgm-a", State: nodez.Ready, LastSuccess: &report.Time, Devices: 8},
		{Node: report.Nodes[1].Name, Name: "dcgm-b", State: nodez.Failing,
			Diagnosis: nodez.Diagnosis{Reason: reason.Timeout, Error: "deadline exceeded",
				Cure: reason.Timeout.DescribeExporter().Cure, URL: reason.ExporterURL}},
	}}}
	site, ctx, _ := open(t, report, "/nodez")
	run(t, ctx, await("document.readyState === 'complete'"), click("#exporters summary"))
	const text = "document.querySelector('.source').innerText"
	for _, want := range []string{
		"Failing", "1 of 2 pods can be read, with 8 devices", "gpu-operator/dcgm-b", "deadline exceeded",
	} {
		if got := evaluate[string](t, ctx, text); !strings.Contains(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	next := *report
	next.DeviceExporters = []nodez.DeviceExporter{{Name: "dcgm", Pods: report.DeviceExporters[0].Pods[:1]}}
	site.report.Store(&next)
	run(t, ctx, click("#reload"), await(text+".includes('1 of 1 pods')"))
	if !evaluate[bool](t, ctx, "document.querySelector('#exporters').open") {
		t.Error("a refresh closes the table of exporters")
	}
}

// TestWithoutScript checks that the table has the same rows without scripts.
func TestWithoutScript(t *testing.T) {
	site := newSite(t, newReport(600))
	ctx := newTab(t)
	noScript := emulation.SetScriptExecutionDisabledParams{Value: true}
	_, err := chromedp.Call(ctx, emulation.SetScriptExecutionDisabled, noScript)
	must(t, err)
	run(t, ctx, chromedp.Navigate(site.URL+"/nodez"))
	text, err := chromedp.Run(ctx, chromedp.Text(chromedp.CSS("main")))
	must(t, err)
	if n := strings.Count(text, ".compute.internal"); n != 500 || !strings.Contains(text, "tls-self-signed") ||
		!strings.Contains(text, "100 more nodes are not listed here") {
		t.Errorf("%d of 600 nodes are shown without scripts", n)
	}
}

// TestPolicy checks that the policy stops what a hostile node could add if escaping failed.
func TestPolicy(t *testing.T) {
	report := newReport(3)
	report.Nodes[0].Name = `"><img src=x onerror=document.title='owned'><script>document.title='owned'</script>`
	report.Nodes[0].Error = `</pre><script>document.title='owned'</script><style>body{display:none}</style>`
	_, ctx, log := open(t, report, "/nodez")
	run(t, ctx, click("#nodes tbody summary"))
	if n := evaluate[int](t, ctx, `document.images.length + document.scripts.length`); n != 1 {
		t.Errorf("the page has %d scripts and images, want 1", n)
	}
	if got := evaluate[string](t, ctx, `document.querySelector('#nodes pre').textContent`); got != report.Nodes[0].Error {
		t.Errorf("the error is shown as %q", got)
	}
	log.check(t)
	const inject = `(() => { const s = document.createElement('script'); s.textContent = "document.title='owned'";
		document.body.append(s); return document.title; })()`
	if title := evaluate[string](t, ctx, inject); title == "owned" {
		t.Error("the policy allows other scripts")
	}
}

// TestScreenshots writes screenshots if the flag is set.
func TestScreenshots(t *testing.T) {
	if *screenshots == "" {
		t.Skip("-screenshots is not set")
	}
	must(t, os.MkdirAll(*screenshots, 0o755))
	for _, scheme := range []string{"light", "dark"} {
		_, ctx, _ := open(t, newReport(200), "/nodez")
		media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
			{Name: "prefers-color-scheme", Value: scheme},
		}}
		_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, media)
		must(t, err)
		run(t, ctx, click("#nodes tbody summary"))
		for _, width := range []int64{1280, 390} {
			run(t, ctx, chromedp.EmulateViewport(width, 900))
			png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
			must(t, err)
			name := fmt.Sprintf("nodez-%s-%d.png", scheme, width)
			must(t, os.WriteFile(filepath.Join(*screenshots, name), png, 0o644))
		}
	}
}
