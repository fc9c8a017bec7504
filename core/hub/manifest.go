package hub

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/k3infer/k3/core/checksum"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/internal/fault"
)

// Folder is where k3 keeps what it knows about a downloaded directory, inside that directory.
const Folder = checksum.Folder

const manifestFile = "manifest.json"

// Manifest is what a directory was downloaded from: all files of the repository, whether they were asked for or not. It is kept
// in the directory, so that files can be checked and fetched again without asking the endpoint what they should be.
type Manifest struct {
	Endpoint string         `json:"endpoint"`
	Repo     string         `json:"repo"`
	Commit   string         `json:"commit"`
	Layers   int            `json:"layers,omitempty"` // only the first so many were asked for; 0 is all
	Files    []ManifestFile `json:"files"`
}

// ManifestFile is a file of a manifest.
type ManifestFile struct {
	File
	Dir     string     `json:"dir,omitempty"`     // absolute, where the file lies instead; the manifest's directory links to it
	Checked *time.Time `json:"checked,omitempty"` // the file's time of change when its checksum was last found right
	Skipped bool       `json:"skipped,omitempty"` // a shard of layers that were not asked for
}

// Find gives the entry of a file, nil if there is none.
func (m *Manifest) Find(name string) *ManifestFile {
	if m == nil {
		return nil
	}
	for i := range m.Files {
		if m.Files[i].Name == name {
			return &m.Files[i]
		}
	}
	return nil
}

// ReadManifest reads the manifest of a directory. A directory without one gives an error that matches fs.ErrNotExist, a damaged
// one ErrManifest.
func ReadManifest(dir string) (*Manifest, error) {
	path := filepath.Join(dir, Folder, manifestFile)
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("hub: read manifest: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxMetadata+1))
	if err != nil {
		return nil, fmt.Errorf("hub: read manifest: %w", err)
	}
	m := &Manifest{}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	switch err := d.Decode(m); {
	case len(data) > maxMetadata:
		return nil, fault.Errorf(ErrManifest, "hub: read %s: more than %d bytes", path, maxMetadata)
	case err != nil:
		return nil, fault.Errorf(ErrManifest, "hub: read %s: %s", path, clean(err.Error()))
	case checkRepo(m.Repo) != nil || !isHex(m.Commit, 40):
		return nil, fault.Errorf(ErrManifest, "hub: read %s: no repository or no commit", path)
	}
	seen := map[string]bool{}
	for _, f := range m.Files {
		switch {
		case !validName(f.Name) || seen[f.Name]:
			return nil, fault.Errorf(ErrManifest, "hub: read %s: %q: not a file's name, or a second time", path, f.Name)
		case f.Size < 0 || f.Size > maxFile || f.SHA256 != "" && !isHex(f.SHA256, 64) || f.GitSHA1 != "" && !isHex(f.GitSHA1, 40):
			return nil, fault.Errorf(ErrManifest, "hub: read %s: %s: the size or the checksum is none", path, f.Name)
		case f.Dir != "" && !filepath.IsAbs(f.Dir):
			return nil, fault.Errorf(ErrManifest, "hub: read %s: %s: %q is not an absolute path", path, f.Name, f.Dir)
		}
		seen[f.Name] = true
	}
	return m, nil
}

// Write puts the manifest into a directory, replacing the one that is there.
func (m *Manifest) Write(dir string) error {
	folder := filepath.Join(dir, Folder)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("hub: write manifest: %w", err)
	}
	f, err := disk.Create(filepath.Join(folder, manifestFile))
	if err != nil {
		return fmt.Errorf("hub: write manifest: %w", err)
	}
	defer f.Abandon()
	e := json.NewEncoder(f)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	if err := e.Encode(m); err != nil {
		return fmt.Errorf("hub: write manifest: %w", err)
	}
	if err := f.Commit(); err != nil {
		return fmt.Errorf("hub: write manifest: %w", err)
	}
	return nil
}

// of reports whether a manifest is a snapshot's.
func (m *Manifest) of(s *Snapshot) bool {
	return strings.EqualFold(m.Repo, s.Repo) && strings.EqualFold(m.Commit, s.Commit)
}

// same reports whether two files have the same content, as far as is known.
func same(a, b File) bool {
	return a.Size == b.Size && a.SHA256 == b.SHA256 && a.GitSHA1 == b.GitSHA1
}

// renew is the manifest of a snapshot, keeping what an earlier one knows about files that are the same. Which files
// were asked for is not noted yet.
func renew(old *Manifest, endpoint string, s *Snapshot) *Manifest {
	m := &Manifest{Endpoint: endpoint, Repo: s.Repo, Commit: s.Commit}
	if old != nil && old.of(s) {
		m.Layers = old.Layers
	}
	for _, f := range s.Files {
		if f.Size < 0 {
			continue // not asked for, and not described
		}
		e := ManifestFile{File: f}
		if o := old.Find(f.Name); o != nil {
			e.Dir, e.Skipped = o.Dir, o.Skipped
			if same(o.File, f) {
				e.Checked = o.Checked
			}
		}
		m.Files = append(m.Files, e)
	}
	slices.SortFunc(m.Files, func(a, b ManifestFile) int { return strings.Compare(a.Name, b.Name) })
	return m
}

// asked notes that files were asked for: all of a model, its first layers, or some by name, which changes nothing about
// others.
func (m *Manifest) asked(r Request, files []File) {
	chosen := map[string]bool{}
	for _, f := range files {
		chosen[f.Name] = true
	}
	for i := range m.Files {
		e := &m.Files[i]
		if chosen[e.Name] {
			e.Skipped = false
		} else if len(r.Include) == 0 {
			e.Skipped = r.Layers > 0 && spreads(e.Name)
		}
	}
	if len(r.Include) == 0 {
		m.Layers = r.Layers
	}
}

// fresh reports whether the file at path is as it was when its checksum was found right.
func (f *ManifestFile) fresh(info fs.FileInfo) bool {
	return f != nil && f.Checked != nil && info.Size() == f.Size && info.ModTime().Equal(*f.Checked)
}

// Unchanged reports whether the file at path is as it was when its checksum was last found right.
func (f *ManifestFile) Unchanged(path string) bool {
	info, err := os.Stat(path)
	return err == nil && f.fresh(info)
}

// notExist reports whether err says that a file is missing.
func notExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// UpdateManifest changes the manifest of a directory, keeping downloads out meanwhile. The error matches ErrBusy while one works
// there.
func UpdateManifest(dir string, change func(*Manifest)) error {
	unlock, err := hold(dir)
	if err != nil {
		return err
	}
	defer unlock()
	m, err := ReadManifest(dir)
	if err != nil {
		return err
	}
	change(m)
	return m.Write(dir)
}

// Unfinished reports whether an earlier download of a file in dir did not finish.
func Unfinished(dir string, f ManifestFile) bool {
	if f.Dir != "" {
		dir = f.Dir
	}
	_, err := os.Stat(filepath.Join(dir, filepath.FromSlash(f.Name)) + partialSuffix)
	return err == nil
}
