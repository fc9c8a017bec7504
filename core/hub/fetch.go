package hub

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/checksum"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/internal/fault"
	"github.com/k3infer/k3/core/internal/ticker"
)

const (
	// span is how many blocks are asked for with one request: large enough that the pause between two requests does not count.
	span = 8
	// restarts is how often a file is begun again when it turned out to be another.
	restarts = 2
)

// Config says how to carry out a plan.
type Config struct {
	Connections int            // requests at a time; 0 is 8
	Progress    func(Progress) // told several times a second how far it is; may be nil
	Done        func(Item)     // told of each file that is whole now, one at a time; may be nil
}

// Progress is how far a download is.
type Progress struct {
	Checking bool   // files that are there are being checked; otherwise files are fetched
	Name     string // a file that is being worked on
	Done     int64  // bytes checked, or there
	Total    int64
	Received int64 // bytes that came over the network so far
}

// Result is what a download did.
type Result struct {
	Received int64         // bytes that came over the network
	Files    int           // that are whole now and were not
	Elapsed  time.Duration // wall time
}

// Download carries out a plan: it checks what is there, fetches what is not, and gives each file its name when its checksum is
// right. When it fails or is cancelled, the same plan made again goes on where it stopped.
//
// The error matches ErrExists if files are there that are others and may not be replaced; nothing is fetched then. ErrDigest and
// ErrChanged are errors of single files: the others are fetched all the same.
func (c *Client) Download(ctx context.Context, p *Plan, o Config) (Result, error) {
	if o.Connections <= 0 {
		o.Connections = 8
	}
	start := time.Now()
	d := &download{client: c, plan: p, config: o}
	d.wake.L = &d.mu
	err := d.run(ctx)
	return Result{d.received.Load(), d.finished, time.Since(start)}, err
}

// download is one call of Download.
type download struct {
	client *Client
	plan   *Plan
	config Config

	received atomic.Int64 // over the network
	done     atomic.Int64 // in place
	checking atomic.Bool
	checked  atomic.Int64
	total    int64 // to be checked
	name     atomic.Pointer[string]

	mu       sync.Mutex
	wake     sync.Cond
	files    []*transfer // in the order of the plan
	open     int         // of them
	failed   error       // ends everything
	cancel   context.CancelFunc
	errs     []error // of single files
	finished int
}

func (d *download) run(ctx context.Context) error {
	p := d.plan
	for _, i := range p.Items {
		if err := os.MkdirAll(filepath.Dir(i.Path), 0o755); err != nil {
			return fmt.Errorf("hub: %w", err)
		}
	}
	if err := os.MkdirAll(filepath.Join(p.Request.Dir, Folder), 0o755); err != nil {
		return fmt.Errorf("hub: %w", err)
	}
	unlock, err := hold(p.Request.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	if err := tryLink(p); err != nil {
		return err
	}
	for _, i := range p.Items {
		if dir := filepath.Dir(i.Path); i.Link != "" {
			p.manifest.Find(i.Name).Dir = dir
		} else {
			p.manifest.Find(i.Name).Dir = ""
		}
	}
	if err := p.manifest.Write(p.Request.Dir); err != nil {
		return err
	}
	stop := d.watch()
	defer stop()
	if err := d.check(ctx); err != nil {
		return err
	}
	return d.fetch(ctx)
}

// hold keeps other downloads out of a directory until the function it returns is called.
func hold(dir string) (func(), error) {
	unlock, err := disk.Lock(filepath.Join(dir, Folder, "lock"))
	if errors.Is(err, disk.ErrLocked) {
		return nil, fault.Errorf(ErrBusy, "hub: another k3 works in %s", dir)
	}
	if err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	return unlock, nil
}

// tryLink makes sure that links can be made, before hours are spent on files that need them.
func tryLink(p *Plan) error {
	for _, i := range p.Items {
		if i.Link == "" {
			continue
		}
		test := filepath.Join(p.Request.Dir, Folder, "link")
		os.Remove(test)
		err := os.Symlink(i.Path, test)
		os.Remove(test)
		if err == nil {
			return nil
		}
		hint := ""
		if runtime.GOOS == "windows" {
			hint = " (Windows allows it in Developer Mode or to administrators; without, leave out --dir)"
		}
		return fmt.Errorf("hub: shards on other disks need symbolic links in %s: %w%s", p.Request.Dir, err, hint)
	}
	return nil
}

// link makes the item's link point to its file.
func (i *Item) link() error {
	if i.Link == "" {
		return nil
	}
	if to, err := os.Readlink(i.Link); err == nil && to == i.Path {
		return nil
	}
	test := i.Link + ".link"
	os.Remove(test)
	err := os.Symlink(i.Path, test)
	if err == nil {
		err = os.Rename(test, i.Link)
	}
	if err != nil {
		os.Remove(test)
		return &localError{fmt.Errorf("link %s to %s: %w", i.Link, i.Path, err)}
	}
	disk.SyncDir(filepath.Dir(i.Link))
	return nil
}

// watch reports progress until the function it returns is called.
func (d *download) watch() func() {
	if d.config.Progress == nil {
		return func() {}
	}
	return ticker.Start(func() {
		p := Progress{Checking: d.checking.Load(), Done: d.done.Load(), Total: d.plan.Total, Received: d.received.Load()}
		if p.Checking {
			p.Done, p.Total = d.checked.Load(), d.total
		}
		if name := d.name.Load(); name != nil {
			p.Name = *name
		}
		d.config.Progress(p)
	})
}

// check looks at the checksums of files that are there already.
func (d *download) check(ctx context.Context) error {
	p := d.plan
	var todo []*Item
	for n := range p.Items {
		i := &p.Items[n]
		switch i.State {
		case Unchecked:
			todo = append(todo, i)
			d.total += i.Size
		case Whole:
			d.done.Add(i.Size)
		}
	}
	d.checking.Store(true)
	defer d.checking.Store(false)
	ctx, d.cancel = context.WithCancel(ctx)
	defer d.cancel()
	var workers sync.WaitGroup
	var next atomic.Int64
	for range min(runtime.GOMAXPROCS(0), len(todo)) {
		workers.Go(func() {
			for {
				n := int(next.Add(1)) - 1
				if n >= len(todo) || ctx.Err() != nil {
					return
				}
				i := todo[n]
				d.name.Store(&i.Name)
				sums := newSummer(i.File)
				err := checkFile(ctx, i.Path, i.File, io.MultiWriter(sums, counter{&d.checked}))
				switch {
				case errors.Is(err, ErrDigest):
					i.State, i.Have = Wrong, 0
				case err != nil:
					d.fail(err)
				default:
					i.State = Whole
					d.done.Add(i.Size)
					if err := d.whole(i, sums.Sums()); err != nil {
						d.fail(err)
					}
				}
			}
		})
	}
	workers.Wait()
	if d.failed != nil {
		return d.failure()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	var wrong []string
	for n := range p.Items {
		switch i := &p.Items[n]; {
		case i.State == Wrong && !p.Request.Force:
			wrong = append(wrong, i.Name)
		case i.State == Whole:
			removePartial(i.Path)
			if err := i.link(); err != nil {
				return fmt.Errorf("hub: %w", err)
			}
		}
	}
	if wrong != nil {
		return fault.Errorf(ErrExists, "hub: not what %s has, and not replaced: %s in %s", p.Repo, strings.Join(wrong, ", "), p.Request.Dir)
	}
	return nil
}

// fail ends everything with an error, unless something did already.
func (d *download) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failed == nil {
		d.failed = err
	}
	d.cancel()
	d.wake.Broadcast()
}

// failure is the error of a download that failed; a cancelled one gives the context's.
func (d *download) failure() error {
	if errors.Is(d.failed, context.Canceled) || errors.Is(d.failed, context.DeadlineExceeded) {
		return d.failed
	}
	return failures(append([]error{d.failed}, d.errs...)...)
}

// counter adds up bytes that are written to it.
type counter struct{ n *atomic.Int64 }

func (c counter) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}

// newSummer makes the checksums that every read of a shard will be compared with; of other files it makes none.
func newSummer(f File) *checkpoint.Summer {
	if !strings.HasSuffix(f.Name, ".safetensors") {
		return checkpoint.NewSummer(0)
	}
	return checkpoint.NewSummer(f.Size)
}

// whole notes in the manifest that a file is right, and its checksums, unless they are nil, beside it.
func (d *download) whole(i *Item, sums *disk.Sums) error {
	info, err := os.Stat(i.Path)
	if err != nil {
		return &localError{err}
	}
	if sums != nil {
		h := checksum.Header{Name: i.Name, Size: sums.Size(), Changed: info.ModTime()}
		if err := (&checksum.File{Header: h, Sums: sums}).Save(d.plan.Request.Dir); err != nil {
			return &localError{err}
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	changed := info.ModTime().UTC()
	d.plan.manifest.Find(i.Name).Checked = &changed
	return d.plan.manifest.Write(d.plan.Request.Dir)
}

// fetch fetches what is not there.
func (d *download) fetch(ctx context.Context) error {
	ctx, d.cancel = context.WithCancel(ctx)
	defer d.cancel()
	for n := range d.plan.Items {
		if i := &d.plan.Items[n]; i.State != Whole {
			d.files = append(d.files, &transfer{download: d, item: i, tags: map[string]string{}})
		}
	}
	release := context.AfterFunc(ctx, func() { d.fail(context.Cause(ctx)) })
	var workers, finishers sync.WaitGroup
	for range d.config.Connections {
		workers.Go(func() {
			buf := make([]byte, d.plan.Request.Block)
			for {
				t, from, to := d.claim(&finishers)
				if t == nil {
					return
				}
				if err := t.fetch(ctx, from, to, buf); err != nil {
					t.ended(err)
				}
			}
		})
	}
	// Workers end when all files are finished or given up, or when something failed; so do the others then.
	workers.Wait()
	finishers.Wait()
	release()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, t := range d.files {
		if t.partial != nil {
			t.partial.close()
		}
		if t.spoiled {
			removePartial(t.item.Path)
		}
	}
	if d.finished+len(d.errs) < len(d.files) {
		return d.failure()
	}
	return failures(d.errs...)
}

// claim waits for blocks to fetch. It returns nil when there are none left, or something failed.
func (d *download) claim(finishers *sync.WaitGroup) (t *transfer, from, to int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		if d.failed != nil {
			return nil, 0, 0
		}
		left := false
		for _, t := range d.files {
			if t.over {
				continue
			}
			left = true
			if t.partial == nil {
				// Files whose blocks are all here wait for their checksum. When that is slower than the network, the network waits.
				if d.open > d.config.Connections+2 {
					break
				}
				p, err := openPartial(t.item.Path, t.item.File, d.plan.Request.Block)
				if err != nil {
					d.failed = err
					d.cancel()
					d.wake.Broadcast()
					return nil, 0, 0
				}
				t.partial, t.claimed = p, make([]bool, len(p.have))
				d.open++
				for b, have := range p.have {
					if have {
						d.done.Add(p.length(b))
					}
				}
				finishers.Go(t.finish)
			}
			if from, to, ok := t.next(); ok {
				t.active++
				d.name.Store(&t.item.Name)
				return t, from, to
			}
		}
		if !left {
			return nil, 0, 0
		}
		d.wake.Wait()
	}
}

// transfer is one file on its way. Its fields belong to whoever holds the download's mutex.
type transfer struct {
	download *download
	item     *Item
	partial  *partial
	claimed  []bool     // somebody fetches it
	active   int        // workers that fetch some of it
	serial   bool       // the server gives whole files only
	over     bool       // finished or given up
	spoiled  bool       // given up because it is not what it should be
	begun    int        // how often it was begun again
	sums     *disk.Sums // once it is whole
	tags     map[string]string
	from     *url.URL // where the endpoint sent us, nil to ask it
}

// next claims blocks, some that lie together.
func (t *transfer) next() (from, to int, ok bool) {
	n := len(t.claimed)
	free := func(b int) bool { return !t.claimed[b] && !t.partial.have[b] }
	for from < n && !free(from) {
		from++
	}
	if from == n || t.serial && t.active > 0 {
		return 0, 0, false
	}
	to = from + 1
	switch {
	case t.serial: // all of it, by a single request
		for b := from; b < n; b++ {
			if free(b) {
				to = b + 1
			}
		}
	default:
		for to < n && to-from < span && free(to) {
			to++
		}
	}
	for b := from; b < to; b++ {
		t.claimed[b] = true
	}
	return from, to, true
}

// ended gives the file up after an error that trying again did not help.
func (t *transfer) ended(err error) {
	d := t.download
	err = fmt.Errorf("%s: %w", t.item.Name, err)
	single := errors.Is(err, ErrDigest) || errors.Is(err, ErrChanged) || errors.Is(err, ErrNotFound) || errors.Is(err, ErrExists)
	if !single {
		d.fail(err)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !t.over {
		t.over, t.spoiled = true, errors.Is(err, ErrDigest) || errors.Is(err, ErrChanged)
		d.open--
		d.errs = append(d.errs, err)
	}
	d.wake.Broadcast()
}

// Reasons to leave some work on a file to others, or undone.
var (
	errSerial  = errors.New("the server ignores ranges")
	errRestart = errors.New("the file was begun again")
	errOver    = errors.New("the file was given up, or everything")
)

// fetch fetches the claimed blocks from to to, by as many requests as it takes. buf has room for a block.
func (t *transfer) fetch(ctx context.Context, from, to int, buf []byte) (err error) {
	d := t.download
	d.mu.Lock()
	begun, serial := t.begun, t.serial
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		t.active--
		if t.begun == begun {
			for b := from; b < to; b++ {
				t.claimed[b] = false
			}
		}
		d.wake.Broadcast()
		if errors.Is(err, errSerial) || errors.Is(err, errRestart) {
			err = nil
		}
	}()
	w := &writer{t: t, begun: begun, serial: serial, block: from, to: to, buf: buf}
	var failures attempts
	for w.block < to {
		before := w.position()
		err := t.stream(ctx, w)
		if w.position() > before {
			failures.progressed()
		}
		if err == nil {
			continue
		}
		if errors.Is(err, errSerial) || errors.Is(err, errRestart) {
			return err
		}
		if err := d.client.retry.wait(ctx, &failures, err); err != nil {
			return err
		}
	}
	return nil
}

// stream makes one request for what w still wants and gives it what comes.
func (t *transfer) stream(ctx context.Context, w *writer) error {
	d, p, size := t.download, t.partial, t.item.Size
	c := d.client
	start, end := w.position(), min(int64(w.to)*p.block, size)
	d.mu.Lock()
	u := t.from
	d.mu.Unlock()
	known := u != nil
	if !known {
		u = c.location(d.plan.snapshot, t.item.File)
	}
	a, err := c.get(ctx, http.MethodGet, u, fmt.Sprintf("bytes=%d-%d", start, end-1), func(a *answer) error { return t.promised(a) })
	if err != nil {
		t.forget(u)
		return err
	}
	if a.StatusCode != http.StatusOK && a.StatusCode != http.StatusPartialContent {
		err := c.failure(a)
		if status := (*statusError)(nil); errors.As(err, &status) && status.code == http.StatusRequestedRangeNotSatisfiable {
			if _, _, total, ok := contentRange(a.Header.Get("Content-Range")); ok && total >= 0 && total != size {
				err = protocolf(ErrChanged, "the server has %d bytes, its metadata say %d", total, size)
			}
		}
		t.forget(u)
		return err
	}
	defer a.Body.Close()
	if e := a.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return protocolf(ErrMetadata, "%s: it comes as %s although that was not asked for", bare(a.url), clean(e))
	}
	if err := t.tagged(a); err != nil {
		return err
	}
	at := start // of the body in the file
	if a.StatusCode == http.StatusPartialContent {
		first, last, total, ok := contentRange(a.Header.Get("Content-Range"))
		switch {
		case !ok || first != start || last < first || last >= end:
			t.forget(u)
			return protocolf(ErrMetadata, "%s: asked for bytes %d to %d it sends %q", bare(a.url), start, end-1, clean(a.Header.Get("Content-Range")))
		case total >= 0 && total != size:
			t.forget(u)
			return protocolf(ErrChanged, "the server has %d bytes, its metadata say %d", total, size)
		case a.ContentLength >= 0 && a.ContentLength != last-first+1:
			return protocolf(ErrMetadata, "%s: %d bytes for the range from %d to %d", bare(a.url), a.ContentLength, first, last)
		}
		end = last + 1
	} else {
		if a.ContentLength >= 0 && a.ContentLength != size {
			t.forget(u)
			return protocolf(ErrChanged, "the server has %d bytes, its metadata say %d", a.ContentLength, size)
		}
		if !w.serial && (start > 0 || end < size) {
			d.mu.Lock()
			t.serial = true
			d.mu.Unlock()
			return errSerial
		}
		at = 0
	}
	if !known && a.url != u {
		d.mu.Lock()
		t.from = a.url
		d.mu.Unlock()
	}
	if at < start {
		if n, err := io.CopyN(io.Discard, a.Body, start-at); err != nil {
			return broken(a.url, n, size, err)
		}
	}
	return w.copy(a, end)
}

// forget asks the endpoint again where the file is, if u is where it sent us.
func (t *transfer) forget(u *url.URL) {
	t.download.mu.Lock()
	defer t.download.mu.Unlock()
	if t.from == u {
		t.from = nil
	}
}

// promised compares what the endpoint says about the file on the way to it with the metadata.
func (t *transfer) promised(a *answer) error {
	c, f := t.download.client, t.item.File
	if !c.home(a.url) || a.StatusCode >= 400 {
		return nil
	}
	if text := a.Header.Get("X-Linked-Size"); text != "" {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil && n != f.Size {
			return protocolf(ErrChanged, "the server has %d bytes, its metadata say %d", n, f.Size)
		}
	}
	tag := strings.ToLower(etag(a.Header.Get("X-Linked-Etag")))
	if f.SHA256 != "" && isHex(tag, 64) && tag != f.SHA256 {
		return protocolf(ErrChanged, "the server has SHA-256 %s, its metadata say %s", tag, f.SHA256)
	}
	if commit := a.Header.Get("X-Repo-Commit"); isHex(commit, 40) && !strings.EqualFold(commit, t.download.plan.Commit) {
		return protocolf(ErrChanged, "the server has commit %s, not %s", commit, t.download.plan.Commit)
	}
	return nil
}

// tagged notices that a server's file is another than before. What came so far may be of either: it is thrown away.
func (t *transfer) tagged(a *answer) error {
	tag := a.Header.Get("Etag")
	if tag == "" {
		return nil
	}
	d := t.download
	d.mu.Lock()
	defer d.mu.Unlock()
	key := a.url.Host + a.url.Path
	switch old, ok := t.tags[key]; {
	case !ok:
		t.tags[key] = tag
		return nil
	case old == tag:
		return nil
	}
	return t.restart(protocolf(ErrChanged, "it changed on the server while it was downloaded"))
}

// restart begins the file again. The error is errRestart, or why when that was done too often. The mutex is held.
func (t *transfer) restart(why error) error {
	clear(t.tags)
	t.from = nil
	d, p := t.download, t.partial
	for b, have := range p.have {
		if have {
			d.done.Add(-p.length(b))
		}
	}
	if err := p.reset(); err != nil {
		return err
	}
	clear(t.claimed)
	t.begun++
	d.wake.Broadcast()
	if t.begun > restarts {
		return fault.Errorf(ErrChanged, "%v", why)
	}
	return errRestart
}

// contentRange reads "bytes FIRST-LAST/TOTAL" or "bytes */TOTAL"; an unknown total is -1.
func contentRange(s string) (first, last, total int64, ok bool) {
	rest, ok := strings.CutPrefix(strings.TrimSpace(s), "bytes ")
	span, size, ok2 := strings.Cut(strings.TrimSpace(rest), "/")
	if !ok || !ok2 {
		return 0, 0, -1, false
	}
	var err, err2, err3 error
	if total = -1; size != "*" {
		if total, err = strconv.ParseInt(size, 10, 64); total < 0 {
			return 0, 0, -1, false
		}
	}
	if span == "*" {
		return 0, -1, total, err == nil && total >= 0
	}
	a, b, _ := strings.Cut(span, "-")
	first, err2 = strconv.ParseInt(a, 10, 64)
	last, err3 = strconv.ParseInt(b, 10, 64)
	return first, last, total, err == nil && err2 == nil && err3 == nil && first >= 0
}

// writer puts a stretch of a file into blocks as it comes. What it has of a block outlives a broken connection.
type writer struct {
	t      *transfer
	begun  int  // of the transfer this is for
	serial bool // the whole file may come
	block  int  // the next to be filled
	to     int
	buf    []byte
	n      int // bytes of the block in buf
}

// position is the byte of the file that is wanted next.
func (w *writer) position() int64 { return int64(w.block)*w.t.partial.block + int64(w.n) }

// copy takes the bytes up to end from the body of an answer that is at position.
func (w *writer) copy(a *answer, end int64) error {
	d, p := w.t.download, w.t.partial
	for w.position() < end {
		length := int(p.length(w.block))
		want := int(min(int64(length-w.n), end-w.position()))
		n, err := a.Body.Read(w.buf[w.n : w.n+want])
		w.n += n
		d.received.Add(int64(n))
		if w.n == length {
			if err := w.store(length); err != nil {
				return err
			}
		}
		if err != nil && w.position() < end {
			return broken(a.url, w.position(), w.t.item.Size, err)
		}
	}
	return nil
}

// store writes the full block.
func (w *writer) store(length int) error {
	d, t := w.t.download, w.t
	data := w.buf[:length]
	d.mu.Lock()
	stale, have := t.begun != w.begun || t.over, t.partial.have[w.block]
	d.mu.Unlock()
	if stale {
		return errRestart
	}
	if !have { // it is there already when a whole file streams by
		if err := t.partial.write(w.block, data); err != nil {
			return err
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if t.begun != w.begun || t.over {
			return errRestart
		}
		if err := t.partial.note(w.block, crc32.Checksum(data, castagnoli)); err != nil {
			return err
		}
		d.done.Add(int64(length))
		d.wake.Broadcast()
	}
	w.block++
	w.n = 0
	return nil
}

// finish follows the blocks as they arrive, adds up the checksum, and gives the file its name when that is right.
func (t *transfer) finish() {
	for {
		err := t.digest()
		if err == nil {
			err = t.complete()
		}
		switch {
		case errors.Is(err, errRestart):
			continue
		case err != nil && !errors.Is(err, errOver):
			t.ended(err)
		}
		return
	}
}

// digest reads the blocks in order and compares the checksum of the whole.
func (t *transfer) digest() error {
	d, p := t.download, t.partial
	d.mu.Lock()
	defer d.mu.Unlock()
	begun := t.begun
	sum, buf := NewDigest(t.item.File), make([]byte, min(p.block, t.item.Size))
	summer := newSummer(t.item.File)
	for b := range p.have {
		for {
			for !p.have[b] && d.failed == nil && !t.over && t.begun == begun {
				d.wake.Wait()
			}
			switch {
			case d.failed != nil || t.over:
				return errOver
			case t.begun != begun:
				return errRestart
			}
			want, data := p.sum[b], buf[:p.length(b)]
			d.mu.Unlock()
			err := p.read(b, data)
			good := err == nil && crc32.Checksum(data, castagnoli) == want
			if good {
				sum.Write(data)
				summer.Write(data)
			}
			d.mu.Lock()
			if err != nil {
				return err
			}
			if good {
				break
			}
			if t.begun == begun && p.have[b] && p.sum[b] == want {
				// The block was noted but did not reach the disk, or has changed there: fetch it again.
				p.have[b] = false
				d.done.Add(-p.length(b))
				d.wake.Broadcast()
			}
		}
	}
	if t.begun != begun {
		return errRestart
	}
	if err := sum.Check(); err != nil {
		if again := t.restart(err); !errors.Is(again, ErrChanged) {
			return again
		}
		return err
	}
	t.sums = summer.Sums()
	return nil
}

// complete gives the file its name.
func (t *transfer) complete() error {
	d := t.download
	d.mu.Lock()
	for t.active > 0 && d.failed == nil { // a serial worker may still be reading on
		d.wake.Wait()
	}
	failed := d.failed
	d.mu.Unlock()
	if failed != nil {
		return errOver
	}
	err := t.partial.finish(d.plan.Request.Force)
	if err == nil {
		err = t.item.link()
	}
	if err == nil {
		err = d.whole(t.item, t.sums)
	}
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	t.item.State, t.item.Have = Whole, t.item.Size
	t.over = true
	d.open--
	d.finished++
	d.wake.Broadcast()
	if d.config.Done != nil {
		d.config.Done(*t.item)
	}
	return nil
}
