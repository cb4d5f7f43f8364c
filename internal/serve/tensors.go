package serve

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"iter"
	"os"
	"slices"
	"strings"

	"octet/checkpoint"
	"octet/fp8"
)

// folder is an open checkpoint or model folder.
type folder struct {
	path             string
	files            []fs.FileInfo       // of the folder when it was opened
	model, optimizer *checkpoint.Tensors // optimizer is nil in a model folder
	config           checkpoint.Config
	state            json.RawMessage
	close            func() error
}

// folders keeps the most recently used folders open, because opening a checkpoint verifies the
// checksums of its files.
type folders struct {
	list []*folder // the most recently used first
}

// openFolders is the number of folders that stay open: a client can compare as many by tensors.
const openFolders = 4

// open opens a folder anew. It verifies a checkpoint.
func (s *folders) open(path string) (*folder, error) {
	if err := s.drop(path); err != nil {
		return nil, err
	}
	f, err := openFolder(path)
	if err != nil {
		return nil, err
	}
	s.list = slices.Insert(s.list, 0, f)
	return f, s.trim(openFolders)
}

// unchanged returns the folder that is open, if its files are the same as then, and else opens it.
func (s *folders) unchanged(path string) (*folder, error) {
	i := slices.IndexFunc(s.list, func(f *folder) bool { return f.path == path })
	if i < 0 {
		return s.open(path)
	}
	if files, err := filesOf(path); err != nil || !slices.EqualFunc(files, s.list[i].files, sameFile) {
		return s.open(path)
	}
	f := s.list[i]
	copy(s.list[1:i+1], s.list[:i])
	s.list[0] = f
	return f, nil
}

// drop closes a folder, if it is open.
func (s *folders) drop(path string) (err error) {
	s.list = slices.DeleteFunc(s.list, func(f *folder) bool {
		if f.path == path {
			err = f.close()
			return true
		}
		return false
	})
	return err
}

// trim closes all but the first n folders.
func (s *folders) trim(n int) (err error) {
	for len(s.list) > n {
		last := len(s.list) - 1
		err = errors.Join(err, s.list[last].close())
		s.list = s.list[:last]
	}
	return err
}

func openFolder(path string) (f *folder, err error) {
	f = &folder{path: path}
	if f.files, err = filesOf(path); err != nil {
		return nil, err
	}
	if _, ok := checkpoint.StepOf(path); ok {
		c, err := checkpoint.Open(path)
		if err != nil {
			return nil, err
		}
		f.model, f.optimizer, f.config, f.state, f.close = c.Model, c.Optimizer, c.Config, c.State, c.Close
		return f, nil
	}
	if f.config, f.model, err = checkpoint.OpenModel(path); err != nil {
		if !slices.ContainsFunc(f.files, func(i fs.FileInfo) bool { return i.Name() == checkpoint.ConfigFile }) {
			err = missingError{err}
		}
		return nil, err
	}
	f.close = f.model.Close
	return f, nil
}

// filesOf returns the files of a folder. Links are followed: a cache of models may consist of them.
func filesOf(path string) (list []fs.FileInfo, err error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		info, err := os.Stat(path + string(os.PathSeparator) + e.Name())
		if err != nil {
			continue // a link to nowhere, or a file that was deleted meanwhile
		}
		list = append(list, info)
	}
	return list, nil
}

func sameFile(a, b fs.FileInfo) bool {
	return a.Name() == b.Name() && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) && os.SameFile(a, b)
}

// tensorReply describes a tensor. Names begin with model/ or optimizer/, as in shards.
type tensorReply struct {
	Name  string `json:"name"`
	DType string `json:"dtype"`
	Shape []int  `json:"shape"`
}

type checkpointReply struct {
	Config  checkpoint.Config `json:"config"`
	State   json.RawMessage   `json:"state,omitempty"`
	Tensors []tensorReply     `json:"tensors"`
}

func listTensors(_ context.Context, s *server, q *request) (reply, error) {
	var p pathRequest
	if err := q.fields(&p); err != nil {
		return reply{}, valueError{err}
	}
	f, err := s.folders.open(p.Path)
	if err != nil {
		return reply{}, err
	}
	a := checkpointReply{Config: f.config, State: f.state, Tensors: []tensorReply{}}
	for prefix, list := range f.all() {
		for _, t := range list.List() {
			a.Tensors = append(a.Tensors, tensorReply{prefix + t.Name, t.DType.String(), append([]int{}, t.Shape...)})
		}
	}
	return reply{fields: a}, nil
}

// all yields the sets of tensors with the prefix of their names.
func (f *folder) all() iter.Seq2[string, *checkpoint.Tensors] {
	return func(yield func(string, *checkpoint.Tensors) bool) {
		if yield("model/", f.model) && f.optimizer != nil {
			yield("optimizer/", f.optimizer)
		}
	}
}

// tensorRequest asks for a tensor of a checkpoint. The answer has one buffer: the tensor as it is
// stored, codes of four bits one in a byte, or with Values float32, which is each FP8 weight times
// its scale_inv.
type tensorRequest struct {
	Path   string `json:"path"`
	Name   string `json:"name"`
	Values bool   `json:"values"`
}

func readTensor(_ context.Context, s *server, q *request) (reply, error) {
	var r tensorRequest
	if err := q.fields(&r); err != nil {
		return reply{}, valueError{err}
	}
	f, err := s.folders.unchanged(r.Path)
	if err != nil {
		return reply{}, err
	}
	for prefix, list := range f.all() {
		name, ok := strings.CutPrefix(r.Name, prefix)
		t, found := list.Lookup(name)
		if !ok || !found {
			continue
		}
		if r.Values {
			values, err := list.Weight(name)
			if err != nil {
				return reply{}, err
			}
			raw := fp8.AppendFloats(make([]byte, 0, 4*len(values)), values...)
			return reply{tensorReply{r.Name, fp8.F32.String(), append([]int{}, t.Shape...)}, [][]byte{raw}}, nil
		}
		from, err := list.Reader(name)
		if err != nil {
			return reply{}, err
		}
		raw := make([]byte, t.DType.Bytes(int(t.Elems())))
		if _, err := io.ReadFull(from, raw); err != nil {
			return reply{}, err
		}
		if t.DType.Size() == 0 {
			codes := make([]byte, t.Elems())
			fp8.Unpack4(codes, raw)
			raw = codes
		}
		return reply{tensorReply{r.Name, t.DType.String(), append([]int{}, t.Shape...)}, [][]byte{raw}}, nil
	}
	return reply{}, wrong("%s has no tensor %q", r.Path, r.Name)
}
