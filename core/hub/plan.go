package hub

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/internal/fault"
)

// indexFile says which shard has which tensor.
const indexFile = "model.safetensors.index.json"

// DefaultInclude is what a model needs, out of a repository that may hold pictures, code and the same weights in other forms.
var DefaultInclude = []string{"*.safetensors", "*.json", "tiktoken.model", "LICENSE*", "README.md"}

// Request says what to download where to.
type Request struct {
	Dir     string   // where the model will be; it need not exist
	Dirs    []string // directories to spread the shards over, linked to from Dir; none: all goes to Dir, or where it went before
	Include []string // patterns of path.Match for whole names, or for the last part of a name if they have no slash; none is DefaultInclude
	Layers  int      // only the shards with the first layers, and with what is in no layer; 0 is all
	Force   bool     // replace files that are not what the repository has
	Block   int64    // bytes that are checked and kept as one; 0 is 8 MiB
}

// State is how much of a file is there.
type State string

// The states of a file.
const (
	Missing   State = "missing"
	Partial   State = "partial"   // an earlier download did not finish it
	Unchecked State = "unchecked" // it has the right size, but its checksum must be looked at
	Whole     State = "whole"     // its checksum was right, and it has not changed since
	Wrong     State = "wrong"     // it is another file
)

// Item is one file of a plan.
type Item struct {
	File
	Path  string `json:"path"`           // where it is or will be
	Link  string `json:"link,omitempty"` // the name in the model's directory that links to Path, if that is elsewhere
	State State  `json:"state"`
	Have  int64  `json:"have"` // bytes that are there already
}

// Disk is what a plan writes to one disk.
type Disk struct {
	Dirs []string `json:"dirs"`
	Free int64    `json:"free"`
	Need int64    `json:"need"`
}

// Plan is what Download will do.
type Plan struct {
	Request  Request `json:"-"`
	Repo     string  `json:"repo"`
	Commit   string  `json:"commit"`
	Endpoint string  `json:"endpoint"`
	Items    []Item  `json:"files"`
	Disks    []Disk  `json:"disks"`
	Total    int64   `json:"total"` // bytes of all items
	Fetch    int64   `json:"fetch"` // bytes of them that are not there

	snapshot *Snapshot
	manifest *Manifest
}

// MakePlan decides which files of a snapshot to fetch, where to put them and what is there already. It writes nothing. The
// error matches ErrRequest for what makes no sense, and ErrSpace when the disks have no room; the plan is there all the same
// in the latter case.
func (c *Client) MakePlan(ctx context.Context, s *Snapshot, r Request) (*Plan, error) {
	var err error
	if r.Dir, err = filepath.Abs(r.Dir); err != nil {
		return nil, fault.Errorf(ErrRequest, "hub: %v", err)
	}
	for i, d := range r.Dirs {
		if r.Dirs[i], err = filepath.Abs(d); err != nil {
			return nil, fault.Errorf(ErrRequest, "hub: %v", err)
		}
	}
	if r.Block <= 0 {
		r.Block = 8 << 20
	}
	if r.Layers < 0 || r.Layers > 0 && len(r.Include) > 0 {
		return nil, fault.Errorf(ErrRequest, "hub: layers are a number from 1, and not to be had together with patterns")
	}
	p := &Plan{Request: r, Repo: s.Repo, Commit: s.Commit, Endpoint: c.Endpoint(), snapshot: s}
	old, err := ReadManifest(r.Dir)
	switch {
	case err != nil && !notExist(err) && !r.Force:
		return nil, err
	case err != nil:
		old = nil
	case !old.of(s) && !r.Force:
		return nil, fault.Errorf(ErrManifest, "hub: %s holds %s at %s, not %s at %s", r.Dir, old.Repo, old.Commit, s.Repo, s.Commit)
	}
	chosen, err := c.choose(ctx, s, r)
	if err != nil {
		return nil, err
	}
	p.manifest = renew(old, c.Endpoint(), s)
	p.manifest.asked(r, chosen)
	if err := p.place(chosen); err != nil {
		return nil, err
	}
	return p, p.measure()
}

// choose gives the files of a snapshot that are asked for, each with a size.
func (c *Client) choose(ctx context.Context, s *Snapshot, r Request) ([]File, error) {
	patterns := r.Include
	if len(patterns) == 0 {
		patterns = DefaultInclude
	}
	matched := make([]bool, len(patterns))
	var chosen []int
	for i, f := range s.Files {
		any := false
		for n, pattern := range patterns {
			name := f.Name
			if !strings.Contains(pattern, "/") {
				// A folder of a repository may hold the same weights in another form: only who asks gets it.
				if len(r.Include) == 0 && strings.Contains(name, "/") {
					continue
				}
				name = path.Base(name)
			}
			ok, err := path.Match(pattern, name)
			if err != nil {
				return nil, fault.Errorf(ErrRequest, "hub: %q is not a pattern", pattern)
			}
			if ok {
				matched[n], any = true, true
			}
		}
		if any {
			chosen = append(chosen, i)
		}
	}
	for n, ok := range matched {
		if !ok && len(r.Include) > 0 {
			return nil, fault.Errorf(ErrRequest, "hub: %s has no file that matches %q", s.Repo, patterns[n])
		}
	}
	if len(chosen) == 0 {
		return nil, fault.Errorf(ErrRequest, "hub: %s has no files of a model", s.Repo)
	}
	for _, i := range chosen {
		if s.Files[i].Size < 0 {
			if err := c.describe(ctx, s, &s.Files[i]); err != nil {
				return nil, err
			}
		}
	}
	var keep func(string) bool
	if r.Layers > 0 {
		shards, err := c.shardsOf(ctx, s, r)
		if err != nil {
			return nil, err
		}
		keep = func(name string) bool { return shards == nil || !isShard(name) || shards[name] }
	}
	var files []File
	for _, i := range chosen {
		if keep == nil || keep(s.Files[i].Name) {
			files = append(files, s.Files[i])
		}
	}
	return files, nil
}

func isShard(name string) bool { return strings.HasSuffix(name, ".safetensors") }

// shardsOf finds the shards with the first layers. It is nil for a repository without an index, whose only shard has them all.
func (c *Client) shardsOf(ctx context.Context, s *Snapshot, r Request) (map[string]bool, error) {
	i := slices.IndexFunc(s.Files, func(f File) bool { return f.Name == indexFile })
	if i < 0 {
		return nil, nil
	}
	f := s.Files[i]
	if f.Size > maxIndex {
		return nil, fault.Errorf(ErrMetadata, "hub: %s: %d bytes are too many for an index", indexFile, f.Size)
	}
	data, err := os.ReadFile(filepath.Join(r.Dir, indexFile))
	if err != nil || digestOf(f, data) != nil {
		if data, err = c.read(ctx, c.location(s, f), f.Size); err == nil {
			err = digestOf(f, data)
		}
		if err != nil {
			return nil, fmt.Errorf("hub: read the index: %w", err)
		}
	}
	shards, err := shardsOfLayers(data, r.Layers)
	if err != nil {
		return nil, fmt.Errorf("hub: read the index: %w", err)
	}
	return shards, nil
}

func digestOf(f File, data []byte) error {
	d := NewDigest(f)
	d.Write(data)
	return d.Check()
}

// shardsOfLayers reads from an index file which shards have a tensor of the first n layers, or of the text model outside layers.
func shardsOfLayers(index []byte, n int) (map[string]bool, error) {
	var x struct {
		Map map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(index, &x); err != nil {
		return nil, fault.Errorf(ErrMetadata, "%s: %s", indexFile, clean(err.Error()))
	}
	shards, most := map[string]bool{}, -1
	for name, shard := range x.Map {
		tensor, ok := checkpoint.ParseName(name)
		if !ok {
			continue // vision
		}
		if most = max(most, tensor.Layer); tensor.Layer >= n {
			continue
		}
		shards[shard] = true
	}
	switch {
	case most < 0:
		return nil, fault.Errorf(ErrMetadata, "%s: no layers of a language model", indexFile)
	case n > most+1:
		return nil, fault.Errorf(ErrRequest, "%d layers: the model has %d", n, most+1)
	}
	return shards, nil
}

// place decides where each file goes: where it is, where an earlier download put it, or, for shards, the directory with room
// that has been given the least.
func (p *Plan) place(files []File) error {
	r := p.Request
	given := map[string]int64{}
	free := map[string]int64{} // by disk
	disks := map[string]string{}
	for _, d := range r.Dirs {
		bytes, volume, err := room(d)
		if err != nil {
			return err
		}
		disks[d], free[volume] = volume, bytes
	}
	take := func(i *Item) {
		dir := filepath.Dir(i.Path)
		given[dir] += i.Size
		if volume, ok := disks[dir]; ok {
			free[volume] -= i.Size - i.Have
		}
	}
	var late []int
	for _, f := range files {
		item, found, err := p.find(f)
		if err != nil {
			return err
		}
		p.Items = append(p.Items, item)
		if !found && len(r.Dirs) > 0 && spreads(f.Name) {
			late = append(late, len(p.Items)-1)
		} else {
			take(&p.Items[len(p.Items)-1])
		}
	}
	for _, n := range late {
		item := &p.Items[n]
		best := ""
		for _, d := range r.Dirs {
			fits, bestFits := free[disks[d]] >= item.Size, best != "" && free[disks[best]] >= item.Size
			if best == "" || fits && !bestFits || fits == bestFits && given[d] < given[best] {
				best = d
			}
		}
		if err := p.elsewhere(item, p.manifest.Find(item.Name), best); err != nil {
			return err
		}
		take(item)
	}
	for _, i := range p.Items {
		p.Total += i.Size
		if i.State != Whole && i.State != Unchecked {
			p.Fetch += i.Size - i.Have
		}
	}
	return nil
}

// find looks for a file where it may be. If it is nowhere, the item is where it was to be before, and found is false.
func (p *Plan) find(f File) (item Item, found bool, err error) {
	entry := p.manifest.Find(f.Name)
	item = Item{File: f, Path: filepath.Join(p.Request.Dir, filepath.FromSlash(f.Name))}
	var dirs []string
	if spreads(f.Name) {
		if entry.Dir != "" {
			dirs = append(dirs, entry.Dir)
		}
		dirs = append(dirs, p.Request.Dirs...)
	}
	if to, err := os.Readlink(item.Path); err == nil {
		for _, d := range dirs {
			if to == filepath.Join(d, f.Name) {
				err := p.elsewhere(&item, entry, d)
				return item, true, err
			}
		}
	}
	if err := p.look(&item, entry); err != nil || item.State != Missing {
		return item, true, err
	}
	for _, d := range dirs {
		probe := item
		if err := p.elsewhere(&probe, entry, d); err != nil || probe.State != Missing {
			return probe, true, err
		}
	}
	if entry.Dir != "" && len(p.Request.Dirs) == 0 && spreads(f.Name) {
		err = p.elsewhere(&item, entry, entry.Dir)
	}
	return item, false, err
}

// spreads reports whether a file is one of those that may lie on other disks than the model's directory.
func spreads(name string) bool { return isShard(name) && !strings.Contains(name, "/") }

// elsewhere puts an item into directory dir, linked to from the model's.
func (p *Plan) elsewhere(item *Item, entry *ManifestFile, dir string) error {
	link := filepath.Join(p.Request.Dir, item.Name)
	item.Path, item.Link = filepath.Join(dir, item.Name), link
	if filepath.Clean(dir) == p.Request.Dir {
		item.Link = ""
	}
	return p.look(item, entry)
}

// look finds out what is at an item's place.
func (p *Plan) look(item *Item, entry *ManifestFile) error {
	item.State, item.Have = Missing, 0
	info, err := os.Stat(item.Path)
	switch {
	case err == nil && !info.Mode().IsRegular():
		return fault.Errorf(ErrExists, "hub: %s is in the way: it is not a regular file", item.Path)
	case err == nil && info.Size() != item.Size:
		item.State = Wrong
	case err == nil && entry.fresh(info) && !p.Request.Force:
		item.State, item.Have = Whole, item.Size
	case err == nil:
		item.State, item.Have = Unchecked, item.Size
	case !notExist(err):
		return fmt.Errorf("hub: look at %s: %w", item.Path, err)
	}
	if item.State == Missing {
		if _, err := os.Lstat(item.Path); err == nil {
			item.State = Wrong // a link to nothing
		}
	}
	if item.Link != "" {
		if info, err := os.Lstat(item.Link); err == nil {
			if to, err := os.Readlink(item.Link); info.Mode()&os.ModeSymlink == 0 || err != nil || to != item.Path {
				item.State = Wrong // a file, or a link to somewhere else
			}
		}
	}
	if item.State == Missing || item.State == Wrong {
		if n := stored(item.Path, item.File, p.Request.Block); n > 0 {
			item.Have = n
			if item.State == Missing {
				item.State = Partial
			}
		}
	}
	return nil
}

// room is what this user may still write on the disk that dir is on or will be, and a name for that disk.
func room(dir string) (bytes int64, on string, err error) {
	if bytes, err = disk.FreeSpace(dir); err == nil {
		on, err = volume(disk.Existing(dir))
	}
	if err != nil {
		return 0, "", fmt.Errorf("hub: %w", err)
	}
	return bytes, on, nil
}

// measure compares what each disk must take with what it has free.
func (p *Plan) measure() error {
	byVolume := map[string]int{}
	for _, i := range p.Items {
		dir := filepath.Dir(i.Path)
		free, volume, err := room(dir)
		if err != nil {
			return err
		}
		n, ok := byVolume[volume]
		if !ok {
			n = len(p.Disks)
			byVolume[volume] = n
			p.Disks = append(p.Disks, Disk{Free: free})
		}
		d := &p.Disks[n]
		if !slices.Contains(d.Dirs, dir) {
			d.Dirs = append(d.Dirs, dir)
		}
		if i.State != Whole && i.State != Unchecked {
			d.Need += i.Size - i.Have
		}
	}
	var lacking []string
	for _, d := range p.Disks {
		if d.Need > d.Free {
			lacking = append(lacking, fmt.Sprintf("%s needs %d bytes and has %d free", strings.Join(d.Dirs, " and "), d.Need, d.Free))
		}
	}
	if lacking != nil {
		return fault.Errorf(ErrSpace, "hub: %s", strings.Join(lacking, "; "))
	}
	return nil
}
