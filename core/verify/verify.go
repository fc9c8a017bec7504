// Package verify proves that a checkpoint is whole: every header, every size, every checksum, every number in it. It lists all
// that is wrong and the files that must be fetched again.
package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/checksum"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/hub"
	"github.com/k3infer/k3/core/internal/ticker"
	"github.com/k3infer/k3/core/memory"
	"github.com/k3infer/k3/core/tokenizer"
)

// Options say how thoroughly to look.
type Options struct {
	Deep     bool           // read every byte: checksums of all files, NaN and infinity in weights, scales of 255
	Restart  bool           // do not go on where an interrupted deep check stopped
	Readers  int            // files read at a time; 0 is 1
	Progress func(Progress) // told several times a second how far a deep check is; may be nil
}

// Progress is how far a deep check is.
type Progress struct {
	Name        string // a file that is being read
	Done, Total int64  // bytes
}

// Result of a file's checksum.
type Result string

// The results of a file.
const (
	NotRead   Result = "not read"  // only its size and structure were looked at
	Right     Result = "right"     // it has the published checksum
	Different Result = "different" // it has another
	Unknown   Result = "unknown"   // it was read, but nobody knows which checksum it should have
	Absent    Result = "missing"
	LeftOut   Result = "left out" // a shard of layers that were not asked for
)

// File is one file of the checkpoint.
type File struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	Result Result `json:"result"`
	Sum    string `json:"sum,omitempty"` // SHA-256, or git's SHA-1 for a file kept in git
}

// Problem is one thing that is wrong.
type Problem struct {
	File   string `json:"file,omitempty"`
	Tensor string `json:"tensor,omitempty"`
	Text   string `json:"problem"`
	// Published says that the file is as it was published, so that fetching it again does not help.
	Published bool `json:"published,omitempty"`
	// Unreadable says that the file could not be read: it may be whole.
	Unreadable bool `json:"unreadable,omitempty"`
	// Unfinished says that another program has not written all of the file yet, so that fetching it again would get in
	// its way.
	Unfinished bool `json:"unfinished,omitempty"`
	missing    bool
}

// Report is what a check found.
type Report struct {
	Path     string `json:"path"`
	Deep     bool   `json:"deep"`
	OK       bool   `json:"ok"` // no problems
	Repo     string `json:"repo,omitempty"`
	Commit   string `json:"commit,omitempty"`
	Endpoint string `json:"endpoint,omitempty"`
	Tensors  int    `json:"tensors"`
	Bytes    int64  `json:"bytes"` // of the shards
	Shards   int    `json:"shards"`
	Checked  int    `json:"checked"` // shards that have checksums, with which every read is compared
	// Layers is of how many layers, of OfLayers, all shards are there, by the index file; -1 without one.
	Layers   int       `json:"layers"`
	OfLayers int       `json:"of_layers"`
	Files    []File    `json:"files"`
	Problems []Problem `json:"problems"`
	Notes    []string  `json:"notes"`
	// Missing are the files that must be fetched, Damaged those that must be fetched again.
	Missing []string `json:"missing"`
	Damaged []string `json:"damaged"`
	// LeftOut are the shards of layers that were not asked for, and are not there.
	LeftOut []string `json:"left_out,omitempty"`
}

// small is the size up to which files are read even if the check is not deep; tests change it.
var small int64 = 64 << 20

// What is known of the released checkpoint without a manifest.
const (
	releasedShards = 96
	releasedBytes  = 1_560_936_091_448
)

// needed are files besides the shards without which a model does not run.
var needed = []string{"config.json", "generation_config.json", "tokenizer_config.json", "tiktoken.model", "model.safetensors.index.json"}

// Check looks at a checkpoint. dir is the directory of files, where its manifest is and where an interrupted deep check leaves
// its notes; "" if there is none. Damage is no error of Check.
func Check(ctx context.Context, files disk.Files, dir string, o Options) (*Report, error) {
	c := &check{files: files, dir: dir, options: o, zeros: map[string]zeros{}}
	c.report = Report{Path: files.Name(), Deep: o.Deep}
	if err := c.run(ctx); err != nil {
		return nil, err
	}
	return &c.report, nil
}

type check struct {
	files    disk.Files
	dir      string
	options  Options
	manifest *hub.Manifest
	report   Report
	read     []target          // what is to be read, or was
	zeros    map[string]zeros  // by file
	sums     map[string]string // SHA-256 by file, without a manifest
	unsaved  error             // why checksums could not be written
	mu       sync.Mutex
}

// target is a file to be read.
type target struct {
	file    hub.File // with what its metadata say
	size    int64    // that it has
	info    fs.FileInfo
	tensors []checkpoint.Tensor // to be looked through, by offset
}

func (c *check) run(ctx context.Context) error {
	if c.dir != "" {
		m, err := hub.ReadManifest(c.dir)
		switch {
		case err == nil:
			c.manifest = m
			c.report.Repo, c.report.Commit, c.report.Endpoint = m.Repo, m.Commit, m.Endpoint
		case errors.Is(err, fs.ErrNotExist):
			c.besides()
		case errors.Is(err, hub.ErrManifest):
			c.problem(Problem{File: hub.Folder + "/manifest.json", Text: err.Error(), Published: true})
		default:
			c.fault(hub.Folder+"/manifest.json", err)
		}
	}
	x, err := checkpoint.Examine(ctx, c.files)
	if err != nil {
		return err
	}
	defer x.Close()
	for _, p := range x.Problems {
		switch {
		case p.Missing && c.leftOut(p.File):
		case p.Missing:
			c.problem(Problem{File: p.File, Text: "it is missing", missing: true})
		default:
			c.add(Problem{File: p.File, Tensor: p.Tensor}, p.Err)
		}
	}
	c.report.Tensors, c.report.Layers = x.Index.Len(), x.Layers
	if x.Config != nil {
		c.report.OfLayers = x.Config.Layers
	}
	c.tokenizer(x.Config)
	c.list(x)
	if n := len(x.Index.Shards()); c.manifest == nil && n == releasedShards && c.report.Bytes != releasedBytes {
		c.note(fmt.Sprintf("the %d shards have %d bytes together; those of the released Kimi-K3 have %d", n, c.report.Bytes, int64(releasedBytes)))
	}
	if err := c.contents(ctx); err != nil {
		return err
	}
	c.checked(x.Index.Shards())
	if !c.options.Deep {
		if err := c.sample(ctx, x); err != nil {
			return err
		}
		c.compared()
	}
	c.judge()
	c.neighbours()
	c.conclude()
	return nil
}

func (c *check) note(text string) { c.report.Notes = append(c.report.Notes, text) }

func (c *check) problem(p Problem) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Several checks open the same file, and find the same.
	if slices.ContainsFunc(c.report.Problems, func(q Problem) bool {
		return q.File == p.File && (p.missing && q.missing || p.Unreadable && q.Unreadable)
	}) {
		return
	}
	c.report.Problems = append(c.report.Problems, p)
}

// fault adds the problem of a file that an error tells of.
func (c *check) fault(file string, err error) { c.add(Problem{File: file}, err) }

// add adds a problem that an error tells of: damage, or that the file could not be read.
func (c *check) add(p Problem, err error) {
	damaged := false
	for _, kind := range []error{
		checkpoint.ErrConfig, checkpoint.ErrFormat, tokenizer.ErrFormat, disk.ErrShort, disk.ErrChecksum, disk.ErrFile,
	} {
		damaged = damaged || errors.Is(err, kind)
	}
	p.Text = strings.TrimPrefix(err.Error(), p.File+": ")
	var path *fs.PathError
	var read *disk.Error
	switch {
	case damaged:
	case errors.Is(err, errWritten), errors.Is(err, disk.ErrChanged):
		p.Unfinished = true
	case errors.As(err, &read):
		p.Unreadable, p.Text = true, fmt.Sprintf("it cannot be read at byte %d: %v", read.Off, read.Err)
	case errors.As(err, &path):
		p.Unreadable, p.Text = true, fmt.Sprintf("it cannot be read: %v", path.Err)
	default:
		p.Unreadable, p.Text = true, fmt.Sprintf("it cannot be read: %s", p.Text)
	}
	c.problem(p)
}

// errWritten says that a file is being written to.
var errWritten = errors.New("it changes while it is read")

// leftOut reports whether a shard was not asked for.
func (c *check) leftOut(name string) bool {
	f := c.manifest.Find(name)
	return f != nil && f.Skipped
}

// compared notes the shards that nobody has compared with what was published since they changed.
func (c *check) compared() {
	n, of := 0, 0
	for _, f := range c.report.Files {
		if f.Result == NotRead && c.manifest.Find(f.Name) != nil {
			if of++; !c.unchanged(f.Name) {
				n++
			}
		}
	}
	if n > 0 {
		c.note(fmt.Sprintf("of %s not read, %d changed after the checksum was right, or it was never looked at: --deep does",
			count(of, "file"), n))
	}
}

// neighbours finds what programs that fetch files leave beside those that they have not finished.
func (c *check) neighbours() {
	names, err := c.files.List()
	if err != nil {
		return // if that matters, it has been said
	}
	known := map[string]Result{}
	for _, f := range c.report.Files {
		known[f.Name] = f.Result
	}
	for _, p := range c.report.Problems {
		if _, ok := known[p.File]; !ok {
			known[p.File] = Absent
		}
	}
	for _, name := range names {
		file := name
		for _, ending := range []string{".aria2", ".incomplete", ".part", ".partial"} {
			file = strings.TrimSuffix(file, ending)
		}
		result, ok := known[file]
		switch {
		case file == name || !ok:
		case file+".partial" == name && (c.manifest.Find(file) != nil || slices.Contains(names, name+".blocks")):
			// It is our own.
		case result == Right:
			c.note(fmt.Sprintf("%s is left over: %s is whole", name, file))
		default:
			c.problem(Problem{File: file, Unfinished: true, Text: fmt.Sprintf("another program is still fetching it, "+
				"or was stopped: %s is beside it; let that finish, or remove %s and fetch the file again", name, name)})
		}
	}
	if c.dir == "" {
		return
	}
	cache := filepath.Join(c.dir, ".cache", "huggingface", "download")
	entries, err := os.ReadDir(cache)
	n := 0
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".incomplete") {
			n++
		}
	}
	if err == nil && n > 0 {
		c.note(fmt.Sprintf("hf download is still fetching %s into this directory, or was stopped: %s", count(n, "file"), cache))
	}
}

// count is a number of things.
func count(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

// besides looks for checksums that came along without a manifest.
func (c *check) besides() {
	sums, name, err := readSums(c.files)
	switch {
	case err != nil:
		c.note(fmt.Sprintf("%s is there and cannot be used: %v", name, err))
	case len(sums) > 0:
		c.sums = sums
		c.note("checksums are those of " + name + ", whoever made it")
	default:
		c.note("no published sizes and checksums are known: k3 download keeps them in " +
			filepath.Join(hub.Folder, "manifest.json"))
	}
}

// tokenizer checks that there is one that loads and fits the model.
func (c *check) tokenizer(config *checkpoint.Config) {
	const ranks, settings = "tiktoken.model", "tokenizer_config.json"
	t, err := tokenizer.Load(c.files)
	var file *tokenizer.FileError
	switch {
	case err == nil && config != nil && t.Vocab() > config.Vocab:
		c.problem(Problem{File: settings, Text: fmt.Sprintf("the tokenizer has %d ids, the model %d", t.Vocab(), config.Vocab)})
	case err == nil:
	case errors.Is(err, fs.ErrNotExist) && c.manifest.Find(ranks) == nil:
		c.note("there is no tokenizer (" + ranks + "): the model runs with --ids only")
	case errors.Is(err, fs.ErrNotExist):
		c.problem(Problem{File: ranks, Text: "it is missing", missing: true})
	case errors.As(err, &file):
		c.fault(file.File, err)
	}
}

// list finds the files there are, compares their sizes with the published ones, and notes those that are to be read.
func (c *check) list(x *checkpoint.Examination) {
	tensors := make([][]checkpoint.Tensor, len(x.Index.Shards()))
	if c.options.Deep {
		for t := range x.Index.All() {
			if x.Sound[t.Shard] {
				tensors[t.Shard] = append(tensors[t.Shard], t)
			}
		}
	}
	names := map[string][]checkpoint.Tensor{}
	for i, s := range x.Index.Shards() {
		slices.SortFunc(tensors[i], func(a, b checkpoint.Tensor) int { return cmp.Compare(a.Offset, b.Offset) })
		names[s.Name] = tensors[i]
	}
	for _, n := range needed {
		names[n] = nil
	}
	if c.manifest != nil {
		for _, f := range c.manifest.Files {
			if _, ok := names[f.Name]; !ok && strings.HasSuffix(f.Name, ".safetensors") && !strings.Contains(f.Name, "/") {
				names[f.Name] = nil
			}
		}
	}
	for _, f := range manifestFiles(c.manifest) {
		if _, ok := names[f.Name]; ok {
			continue
		}
		if size, err := c.size(f.Name); err == nil && size >= 0 {
			names[f.Name] = nil // not needed, but it is there
		}
	}
	for _, name := range sorted(names) {
		want := c.manifest.Find(name)
		size, err := c.size(name)
		switch {
		case errors.Is(err, fs.ErrNotExist) && want == nil:
			continue // if it is needed, that has been said
		case errors.Is(err, fs.ErrNotExist) && want.Skipped:
			c.report.LeftOut = append(c.report.LeftOut, name)
			c.report.Files = append(c.report.Files, File{Name: name, Size: want.Size, Result: LeftOut})
			continue
		case errors.Is(err, fs.ErrNotExist):
			c.problem(Problem{File: name, Text: "it is missing", missing: true})
			c.report.Files = append(c.report.Files, File{Name: name, Size: want.Size, Result: Absent})
			continue
		case err != nil:
			c.fault(name, err)
			continue
		}
		if strings.HasSuffix(name, ".safetensors") {
			c.report.Bytes += size
		}
		t := target{file: hub.File{Name: name, Size: size, SHA256: c.sums[name]}, size: size, tensors: names[name]}
		if want != nil {
			t.file = want.File
			if size != want.Size {
				c.problem(Problem{File: name, Text: fmt.Sprintf("it has %d bytes, published are %d", size, want.Size)})
				c.report.Files = append(c.report.Files, File{Name: name, Size: size, Result: Different})
				continue
			}
		}
		if c.options.Deep || expected(t.file) != "" && size <= small {
			if c.dir != "" {
				t.info, _ = os.Stat(filepath.Join(c.dir, filepath.FromSlash(name)))
			}
			c.read = append(c.read, t)
		} else {
			c.report.Files = append(c.report.Files, File{Name: name, Size: size, Result: NotRead})
		}
	}
}

func manifestFiles(m *hub.Manifest) []hub.ManifestFile {
	if m == nil {
		return nil
	}
	return m.Files
}

func sorted[V any](m map[string]V) []string {
	var names []string
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (c *check) size(name string) (int64, error) {
	f, err := c.files.Open(filepath.FromSlash(name))
	if err != nil {
		return -1, err
	}
	defer f.Close()
	return f.Size(), nil
}

// contents reads the files that are to be read.
func (c *check) contents(ctx context.Context) error {
	if len(c.read) == 0 {
		return ctx.Err()
	}
	readers := max(c.options.Readers, 1)
	dir := c.dir
	if !c.options.Deep {
		dir = "" // seconds of work need no journal
	}
	j := openRecords(dir, c.options.Restart)
	finished := false
	defer func() { j.close(finished) }()

	total, done := int64(0), atomic.Int64{}
	var name atomic.Pointer[string]
	var todo []target
	for _, t := range c.read {
		if r, ok := j.known(t.file.Name, t.info, expected(t.file)); ok {
			c.result(t, r)
			continue
		}
		todo = append(todo, t)
		total += t.size
	}
	if skipped := len(c.read) - len(todo); skipped > 0 {
		c.note(fmt.Sprintf("%d files were read before the last check was interrupted, and have not changed since", skipped))
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pool := disk.NewPool(disk.Config{Readers: 2 * readers, Piece: piece})
	defer pool.Close()
	var workers sync.WaitGroup
	var next atomic.Int64
	errs := make(chan error, readers)
	for range min(readers, len(todo)) {
		workers.Go(func() {
			r, err := newReader(pool, func(n int) { done.Add(int64(n)) })
			if err != nil {
				errs <- err
				cancel()
				return
			}
			defer r.free()
			for {
				n := int(next.Add(1)) - 1
				if n >= len(todo) || ctx.Err() != nil {
					return
				}
				t := todo[n]
				name.Store(&t.file.Name)
				rec, err := r.file(ctx, c.files, t)
				switch {
				case ctx.Err() != nil:
					return
				case err != nil:
					c.fault(t.file.Name, err)
				default:
					c.checksums(t, &rec)
					j.add(rec)
					c.result(t, rec)
				}
			}
		})
	}
	stop := c.watch(&name, &done, total)
	workers.Wait()
	stop()
	select {
	case err := <-errs:
		return err
	default:
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	finished = true
	c.remember()
	return nil
}

// watch reports progress until the function it returns is called.
func (c *check) watch(name *atomic.Pointer[string], done *atomic.Int64, total int64) func() {
	if c.options.Progress == nil {
		return func() {}
	}
	return ticker.Start(func() {
		p := Progress{Done: done.Load(), Total: total}
		if n := name.Load(); n != nil {
			p.Name = *n
		}
		c.options.Progress(p)
	})
}

func expected(f hub.File) string { return cmp.Or(f.SHA256, f.GitSHA1) }

// result adds what reading a file gave to the report.
func (c *check) result(t target, r record) {
	f := File{Name: t.file.Name, Size: t.size, Sum: r.Sum, Result: Unknown}
	want := expected(t.file)
	if want != "" {
		f.Result = Right
		if r.Sum != want {
			f.Result = Different
		}
	}
	for _, x := range r.Faults {
		c.problem(Problem{File: f.Name, Tensor: x.Tensor, Text: x.Text, Published: f.Result == Right})
	}
	if f.Result == Different {
		c.problem(Problem{File: f.Name, Text: fmt.Sprintf("its checksum is %s, published is %s", r.Sum, want)})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.zeros[f.Name] = r.Zeros
	c.report.Files = append(c.report.Files, f)
}

// checksums keeps those of a shard that was found right, so that every read of it will be checked. Where there are some
// already, and nothing else says what the shard should be, they tell whether it has been damaged since.
func (c *check) checksums(t target, r *record) {
	want := expected(t.file)
	if r.sums == nil || c.dir == "" || t.info == nil || len(r.Faults) > 0 || want != "" && r.Sum != want {
		return
	}
	old, err := checksum.Load(c.files, r.Name)
	if err == nil && old.Sums.Equal(r.sums) {
		return
	}
	if err == nil && want == "" && old.Changed.Equal(r.Changed) {
		text := "its bytes are not those that were verified before, although nothing has written to it since: the disk lost them"
		if off, ok := old.Sums.Differ(r.sums); ok {
			text = fmt.Sprintf("%s (from byte %d on)", text, off)
		}
		r.Faults = append(r.Faults, fault{"", text})
		return
	}
	h := checksum.Header{Name: r.Name, Size: r.Size, Changed: r.Changed}
	if err := (&checksum.File{Header: h, Sums: r.sums}).Save(c.dir); err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.unsaved = err
		return
	}
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.note(r.Name + " was replaced since its checksums were made; they were made anew")
	}
}

// checked counts the shards that have checksums.
func (c *check) checked(shards []checkpoint.Shard) {
	for _, s := range shards {
		if checksum.Exists(c.files, s.Name) {
			c.report.Checked++
		}
	}
	c.report.Shards = len(shards)
	if c.unsaved != nil {
		c.note(fmt.Sprintf("checksums could not be written, so reads will not be checked: %v", c.unsaved))
	}
}

// remember tells later downloads which files are right and which are not. It only saves them work, so failure is no matter.
func (c *check) remember() {
	if c.manifest == nil {
		return
	}
	infos := map[string]fs.FileInfo{}
	for _, t := range c.read {
		infos[t.file.Name] = t.info
	}
	changed := false
	update := func(m *hub.Manifest, apply bool) {
		for _, f := range c.report.Files {
			e, info := m.Find(f.Name), infos[f.Name]
			if e == nil {
				continue
			}
			var stamp *time.Time
			switch {
			case f.Result == Right && info != nil:
				at := info.ModTime().UTC()
				stamp = &at
			case f.Result == Different:
			default:
				continue
			}
			if (e.Checked == nil) != (stamp == nil) || stamp != nil && !stamp.Equal(*e.Checked) {
				changed = true
				if apply {
					e.Checked = stamp
				}
			}
		}
	}
	if update(c.manifest, false); !changed {
		return
	}
	place := filepath.ToSlash(filepath.Join(hub.Folder, "manifest.json"))
	if err := hub.UpdateManifest(c.dir, func(m *hub.Manifest) { update(m, true) }); err != nil {
		c.note("which files are right could not be noted in " + place + ", so that k3 download will read them again")
		return
	}
	c.note("which files are right was noted in " + place + ", so that k3 download need not read them again")
}

// conclude sorts the findings and says which files to fetch.
func (c *check) conclude() {
	r := &c.report
	results := map[string]Result{}
	for _, f := range r.Files {
		results[f.Name] = f.Result
	}
	unfinishedFiles := map[string]bool{}
	for _, p := range r.Problems {
		unfinishedFiles[p.File] = unfinishedFiles[p.File] || p.Unfinished
	}
	for i := range r.Problems {
		p := &r.Problems[i]
		if results[p.File] == Right {
			p.Published = true
		}
		switch {
		case p.File == "" || p.Published || p.Unreadable || unfinishedFiles[p.File]:
		case p.missing:
			r.Missing = append(r.Missing, p.File)
		default:
			r.Damaged = append(r.Damaged, p.File)
		}
	}
	for _, list := range []*[]string{&r.Missing, &r.Damaged} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	slices.SortFunc(r.Files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	slices.SortStableFunc(r.Problems, func(a, b Problem) int { return strings.Compare(a.File, b.File) })
	unfinished := 0
	for _, name := range r.Missing {
		if f := c.manifest.Find(name); f != nil && hub.Unfinished(c.dir, *f) {
			unfinished++
		}
	}
	if len(r.LeftOut) > 0 {
		c.note(fmt.Sprintf("%d of %d layers are here, and no others were asked for: this is enough to look at, not to run",
			r.Layers, r.OfLayers))
	}
	if unfinished > 0 {
		c.note(fmt.Sprintf("the download of %d of the missing files was begun and goes on where it stopped", unfinished))
	}
	r.OK = len(r.Problems) == 0
}

const piece = 4 << 20

// reader reads files piece by piece, around the page cache where it can: what counts is what is on the disk.
type reader struct {
	pool    *disk.Pool
	account memory.Account
	blocks  [2]*memory.Block
	read    func(n int)
}

func newReader(pool *disk.Pool, read func(n int)) (*reader, error) {
	r := &reader{pool: pool, read: read}
	for i := range r.blocks {
		b, err := r.account.Allocate("verification", piece+disk.Block)
		if err != nil {
			r.free()
			return nil, err
		}
		r.blocks[i] = b
	}
	return r, nil
}

func (r *reader) free() {
	for _, b := range r.blocks {
		if b != nil {
			b.Free()
		}
	}
}

// file reads a whole file; the next piece comes while the checksum of the last is made and its numbers are looked at.
func (r *reader) file(ctx context.Context, files disk.Files, t target) (record, error) {
	rec := record{Name: t.file.Name, Size: t.size, Expected: expected(t.file)}
	if t.info != nil {
		rec.Changed = t.info.ModTime()
	}
	f, err := files.Open(filepath.FromSlash(t.file.Name))
	if err != nil {
		return rec, err
	}
	defer f.Close()
	if f.Size() != t.size {
		return rec, fmt.Errorf("%w: it had %d bytes a moment ago, now %d", errWritten, t.size, f.Size())
	}
	digest, summer := hub.NewDigest(t.file), checkpoint.NewSummer(t.size)
	scan := scanner{tensors: t.tensors, report: func(tensor, text string) { rec.Faults = append(rec.Faults, fault{tensor, text}) }}
	results := [2]chan error{make(chan error, 1), make(chan error, 1)}
	begin := func(slot int, at int64) {
		n := int(min(piece, t.size-at))
		if n <= 0 {
			return
		}
		run := disk.Run{File: f, Off: at, Len: n, Mem: r.blocks[slot].Bytes()[:disk.Span(at, n)]}
		r.pool.Start(ctx, disk.Ahead, []disk.Run{run}, func(err error) { results[slot] <- err })
	}
	begin(0, 0)
	for at, slot := int64(0), 0; at < t.size; at, slot = at+piece, 1-slot {
		err := <-results[slot]
		if err != nil {
			return rec, err
		}
		begin(1-slot, at+piece)
		data := r.blocks[slot].Bytes()[:min(piece, t.size-at)]
		var scanning sync.WaitGroup
		scanning.Go(func() { scan.feed(data, at) })
		if strings.HasSuffix(t.file.Name, ".safetensors") {
			summer.Write(data)
		}
		digest.Write(data)
		scanning.Wait()
		r.read(len(data))
	}
	scan.feed(nil, t.size) // tensors without elements at the end
	rec.Sum, rec.sums, rec.Zeros = digest.Sum(), summer.Sums(), scan.zeros.found
	return rec, nil
}
