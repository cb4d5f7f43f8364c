package prepare

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gofrs/flock"

	"octet/data"
	"octet/internal/disk"
)

// Files of an unfinished folder.
const (
	argumentsFile = data.UnfinishedFile   // written first
	stateFile     = ".prepare-state.json" // the writer's progress
	lockFile      = ".prepare-lock"
)

// arguments are what the output depends on.
type arguments struct {
	Format      int      `json:"format"`
	Kind        string   `json:"kind"`
	Fields      []string `json:"fields"`
	Chat        string   `json:"chat"`
	Tokenizer   string   `json:"tokenizer"` // SHA-256
	EndOfText   int32    `json:"end_of_text"`
	Special     bool     `json:"special"`
	Val         float64  `json:"val"`
	ShardTokens int64    `json:"shard_tokens"`
	Sources     []source `json:"sources"`
}

// stateFormat changes when an older state cannot be continued.
const stateFormat = 2

func argumentsOf(o *Options, sources []source) arguments {
	return arguments{stateFormat, o.Kind, o.fields(), o.Chat, o.Tokenizer.SHA256(), o.Tokenizer.EndOfText, o.Special, o.Val, o.ShardTokens, sources}
}

// difference returns what differs from the arguments of an earlier call, "" if nothing does.
func (a *arguments) difference(now *arguments) string {
	for _, c := range []struct {
		name     string
		was, now any
	}{
		{"the version of the format", a.Format, now.Format},
		{"--kind", a.Kind, now.Kind},
		{"--field", strings.Join(a.Fields, ", "), strings.Join(now.Fields, ", ")},
		{"--chat", a.Chat, now.Chat},
		{"the SHA-256 of --tokenizer", a.Tokenizer, now.Tokenizer},
		{"the id of the end of text (--eos)", a.EndOfText, now.EndOfText},
		{"--special", a.Special, now.Special},
		{"--val", a.Val, now.Val},
		{"--shard-tokens", a.ShardTokens, now.ShardTokens},
	} {
		if c.was != c.now {
			return fmt.Sprintf("%s was %v, and is %v now", c.name, c.was, c.now)
		}
	}
	for i := range min(len(a.Sources), len(now.Sources)) {
		was, is := a.Sources[i], now.Sources[i]
		switch {
		case was.Path != is.Path:
			return fmt.Sprintf("file %d was %s, and is %s now", i+1, was.Path, is.Path)
		case was.Bytes != is.Bytes:
			return fmt.Sprintf("%s had %d bytes, and has %d now", is.Path, was.Bytes, is.Bytes)
		case was.Modified != is.Modified:
			return fmt.Sprintf("%s was modified", is.Path)
		}
	}
	if len(a.Sources) != len(now.Sources) {
		return fmt.Sprintf("there were %d files, and are %d now", len(a.Sources), len(now.Sources))
	}
	return ""
}

// state is the writer's progress: everything before it is on disk. It is saved between documents.
type state struct {
	Next      position             `json:"next"`
	Parts     map[string]partState `json:"parts"`
	Documents []int64              `json:"documents"` // of the sources
	LeftOut   int64                `json:"left_out"`
	Empty     int64                `json:"empty"`
	EndInside bool                 `json:"end_inside"` // as in data.PreparedTokenizer
}

// writer writes batches to shards.
type writer struct {
	*Options
	sources []source
	state   state
	parts   map[string]*part
	within  bool // a document or a pair is not complete
	resumed bool
	done    bool // PreparedFile is there
	made    bool // the folder was made by this call
	lock    *flock.Flock
	peak    int64 // bytes in flight
}

// openWriter finds the sources and opens the folder: a new one, an empty one, or the one of an earlier
// call with the same arguments.
func openWriter(o *Options) (*writer, error) {
	if err := disk.CheckLocal(o.Out); err != nil {
		return nil, &InputError{err}
	}
	sources, leftOut, err := findSources(o)
	if err != nil {
		return nil, err
	}
	w := &writer{Options: o, sources: sources, parts: map[string]*part{}}
	w.state = state{Documents: make([]int64, len(sources)), LeftOut: leftOut}
	args := argumentsOf(o, sources)
	raw, err := json.Marshal(&args)
	if err != nil {
		return nil, err
	}
	before, err := w.openFolder()
	if err != nil {
		return nil, err
	}
	if err := w.takeLock(); err != nil {
		return nil, err
	}
	if before == nil {
		if err := disk.WriteAtomic(filepath.Join(o.Out, argumentsFile), raw); err != nil {
			return nil, errors.Join(err, w.close(err))
		}
	} else if err := w.resume(before, &args); err != nil {
		return nil, errors.Join(err, w.lock.Close())
	}
	for _, name := range []string{data.TrainPart, data.ValPart} {
		p := &part{partState: w.state.Parts[name], dir: o.Out, name: name, kind: o.Kind, width: data.ShardWidth(o.Tokenizer.Vocab()), most: o.limits.shard}
		w.parts[name] = p
		if w.done {
			continue
		}
		if err := p.resume(); err != nil {
			return nil, errors.Join(err, w.close(nil))
		}
	}
	return w, nil
}

// openFolder makes the folder, and returns the arguments of an earlier call, nil without one.
func (w *writer) openFolder() ([]byte, error) {
	list, err := os.ReadDir(w.Out)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		w.made = true
		return nil, disk.MakeDirs(w.Out)
	case err != nil:
		return nil, badInput("--out: %w", err)
	}
	names := slices.DeleteFunc(list, func(e fs.DirEntry) bool {
		return e.Name() == lockFile || e.Name() == "."+argumentsFile+".partial"
	})
	if len(names) == 0 {
		return nil, nil
	}
	raw, err := os.ReadFile(filepath.Join(w.Out, argumentsFile))
	if err == nil {
		return raw, nil
	}
	if data.IsPrepared(w.Out) {
		return nil, badInput("--out: %s is a folder of tokens already: name another folder, or remove this one", w.Out)
	}
	return nil, badInput("--out: %s is not empty: name a new folder", w.Out)
}

func (w *writer) takeLock() error {
	name := filepath.Join(w.Out, lockFile)
	f, err := disk.Open(name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	w.lock = flock.New(name)
	locked, err := w.lock.TryLock()
	if err != nil {
		return err
	}
	if !locked {
		return badInput("--out: another process writes to %s", w.Out)
	}
	return nil
}

// resume reads the state of an earlier call.
func (w *writer) resume(raw []byte, now *arguments) error {
	again := fmt.Sprintf("give the same arguments and files, or remove %s to start anew", w.Out)
	var was arguments
	if err := json.Unmarshal(raw, &was); err != nil {
		return badInput("%s: %w: %s", filepath.Join(w.Out, argumentsFile), err, again)
	}
	if d := was.difference(now); d != "" {
		return badInput("%s has the beginning of an earlier call with other arguments: %s: %s", w.Out, d, again)
	}
	w.resumed, w.done = true, data.IsPrepared(w.Out)
	text, err := os.ReadFile(filepath.Join(w.Out, stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	w.state = state{}
	if err := json.Unmarshal(text, &w.state); err != nil {
		return badInput("%s: %w: %s", filepath.Join(w.Out, stateFile), err, again)
	}
	if s := &w.state; len(s.Documents) != len(w.sources) || s.Next.Source < 0 || s.Next.Source >= len(w.sources) || s.Next.Number < 0 || s.Next.Offset < 0 {
		return badInput("%s does not belong to the files: %s", filepath.Join(w.Out, stateFile), again)
	}
	return nil
}

// batch writes the documents of a batch.
func (w *writer) batch(b *batch) error {
	ids, mask, encoded := b.ids, b.mask, b.encoded
	width := int64(data.ShardWidth(w.Tokenizer.Vocab()))
	for i := range b.items {
		it := &b.items[i]
		if it.begins { // a token has a byte or more, but for some at the ends
			if err := w.partOf(&encoded[0]).room(min(it.size+1024, w.limits.shard)); err != nil {
				return err
			}
		}
		var complete bool
		for range it.documents {
			e := &encoded[0]
			p := w.partOf(e)
			if !it.part && !w.within {
				if err := p.room(pairTokens(encoded)); err != nil {
					return err
				}
			}
			n, m := e.tokens*width, int64(0)
			if len(mask) > 0 {
				m = e.tokens
			}
			if err := p.write(e, ids[:n], mask[:m]); err != nil {
				if bad, ok := errors.AsType[*InputError](err); ok {
					return badInput("%s: %w", placeOf(w.sources, it.next), bad.Err)
				}
				return err
			}
			ids, mask, encoded = ids[n:], mask[m:], encoded[1:]
			w.within = e.more || e.pair
			w.state.EndInside = w.state.EndInside || e.inside
			if !e.more {
				w.state.Documents[it.next.Source]++
			}
			if !w.within && p.Open.Tokens >= w.ShardTokens {
				if err := p.complete(); err != nil {
					return err
				}
				complete = complete || p.name == data.TrainPart
			}
		}
		if it.leftOut {
			w.state.LeftOut++
		}
		if it.empty {
			w.state.Empty++
		}
		w.state.Next = it.next
		if complete {
			if err := w.save(); err != nil {
				return err
			}
		}
	}
	return nil
}

// pairTokens returns the ids of the first document, and of those that belong to it.
func pairTokens(list []encoded) (n int64) {
	for i := range list {
		if n += list[i].tokens; !list[i].pair {
			break
		}
	}
	return n
}

func (w *writer) partOf(e *encoded) *part {
	if e.val {
		return w.parts[data.ValPart]
	}
	return w.parts[data.TrainPart]
}

// bytes returns the bytes of the text that is written.
func (w *writer) bytes() (n int64) {
	for name, p := range w.parts {
		n += total(p.Shards, name).Bytes + p.Open.Bytes
	}
	return n
}

// save makes what is written durable, and then the state.
func (w *writer) save() error {
	w.state.Parts = map[string]partState{}
	for name, p := range w.parts {
		if err := p.sync(); err != nil {
			return err
		}
		w.state.Parts[name] = p.partState
	}
	if err := disk.SyncDir(w.Out); err != nil { // the names of the shards
		return err
	}
	raw, err := json.Marshal(&w.state)
	if err != nil {
		return err
	}
	return disk.WriteAtomic(filepath.Join(w.Out, stateFile), raw)
}

// interrupted saves the state, and returns the cause of an interruption.
func (w *writer) interrupted(cause error) error {
	if w.within {
		return cause
	}
	return errors.Join(cause, w.save())
}

// finish completes the last shards and the folder, and returns its description.
func (w *writer) finish() (p data.Prepared, err error) {
	if w.done {
		p, _, err = data.ReadPrepared(w.Out)
		return p, errors.Join(err, w.clean())
	}
	p = data.Prepared{
		Octet: w.Version, Kind: w.Kind, Val: w.Val,
		Tokenizer: data.PreparedTokenizer{SHA256: w.Tokenizer.SHA256(), Vocab: w.Tokenizer.Vocab(), EndOfText: w.Tokenizer.EndOfText, EndInside: w.state.EndInside},
	}
	for _, name := range []string{data.TrainPart, data.ValPart} {
		if err := w.parts[name].complete(); err != nil {
			return p, err
		}
		p.Shards = append(p.Shards, w.parts[name].Shards...)
	}
	switch {
	case len(p.Shards) == 0:
		return p, badInput("%s: no document has text", w.Sources[0])
	case len(w.parts[data.TrainPart].Shards) == 0:
		return p, badInput("--val %v holds out all %d documents: hold out fewer, or give more", w.Val, total(p.Shards, data.ValPart).Documents)
	}
	for i, s := range w.sources {
		if w.state.Documents[i] > 0 {
			p.Sources = append(p.Sources, data.PreparedSource{Path: s.Path, Bytes: s.Bytes, Documents: w.state.Documents[i]})
		}
	}
	if err := disk.SyncDir(w.Out); err != nil {
		return p, err
	}
	for _, f := range w.Tokenizer.Files {
		if err := disk.WriteAtomic(filepath.Join(w.Out, f.Name), f.Data); err != nil {
			return p, err
		}
	}
	if err := data.WritePrepared(w.Out, p); err != nil {
		return p, err
	}
	w.done = true
	return p, w.clean()
}

// clean removes the files of an unfinished folder.
func (w *writer) clean() error {
	var err error
	for _, name := range []string{stateFile, argumentsFile} {
		err = errors.Join(err, disk.RemoveAll(filepath.Join(w.Out, name)))
	}
	_ = disk.RemoveAll(filepath.Join(w.Out, lockFile)) // it stays on Windows, where it is open
	return err
}

// close closes the files. After bad input it removes what was written: a repaired file is another one,
// so that nothing can be continued. After an error of the system all stays.
func (w *writer) close(cause error) (err error) {
	for _, p := range w.parts {
		err = errors.Join(err, p.close())
	}
	if _, bad := errors.AsType[*InputError](cause); bad && !w.done {
		for name, p := range w.parts {
			for i := range len(p.Shards) + 1 {
				for _, suffix := range suffixes(w.Kind) {
					err = errors.Join(err, disk.RemoveAll(filepath.Join(w.Out, data.ShardName(name, i)+suffix)))
				}
			}
		}
		err = errors.Join(err, w.clean())
		if w.made && err == nil {
			_ = os.Remove(w.Out) // it stays if it is not empty
		}
	}
	return errors.Join(err, w.lock.Close())
}
