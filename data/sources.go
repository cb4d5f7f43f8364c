package data

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// OpenSources opens several sources of training data, each like the path of OpenFiles. Every
// row of a Loader comes from one of them, see Source. The validation stream is that of the
// first source, the second and so on, each of at most an equal share of ValBytes. The sources must have
// the same tokenizer.
func OpenSources(sources []Source, o Options) (*Corpus, error) {
	if len(sources) == 0 {
		return nil, errors.New("data: no sources: name some, with a weight each")
	}
	sum := 0.0
	for _, s := range sources {
		if !(s.Weight >= 0) {
			return nil, fmt.Errorf("data: the weight of %q is %v: expected 0 or more", s.Path, s.Weight)
		}
		sum += s.Weight
	}
	if !(sum > 0) {
		return nil, errors.New("data: all weights are 0: raise one")
	}
	var paths []string
	for _, s := range sources {
		paths = append(paths, s.Path)
	}
	if err := checkApart(paths); err != nil {
		return nil, err
	}
	o.ValBytes /= int64(len(sources))
	c := &Corpus{Info: Info{Kind: KindSources}, Sources: slices.Clone(sources)}
	var train, val joined
	hash := newCorpusHash()
	for i := range c.Sources {
		s := &c.Sources[i]
		from, err := OpenFiles([]string{s.Path}, o)
		if err == nil {
			c.parts = append(c.parts, from)
			err = c.sameTokenizer(s.Path, from)
		}
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		s.Train = from.Train
		c.EndInside = c.EndInside || from.EndInside
		train.add(from.Train)
		val.add(from.Val)
		hash.begin(from.Info.SHA256, from.Info.TrainTokens)
		c.Info.Weights = append(c.Info.Weights, s.Weight)
		c.Info.Vocab = max(c.Info.Vocab, from.Info.Vocab)
		c.Info.LeftOut += from.Info.LeftOut
		c.Info.Files = append(c.Info.Files, from.Info.Files...)
	}
	c.Train, c.Val = &train, &val
	if o.Answers {
		c.Train, c.Val = maskedJoined{&train}, maskedJoined{&val}
	}
	c.Info.SHA256, c.Info.TrainTokens, c.Info.ValTokens = hash.String(), train.Len(), val.Len()
	return c, nil
}

// checkApart returns an error if a path is another one or a part of it: text of one could be in the
// training and the validation stream.
func checkApart(paths []string) error {
	list := make([]string, len(paths))
	for i, p := range paths {
		name, err := filepath.Abs(p)
		if err != nil {
			return unreadable(p, err)
		}
		list[i] = filepath.Clean(name) + string(filepath.Separator)
	}
	for i, a := range list {
		for k, b := range list {
			if i != k && strings.HasPrefix(b, a) {
				return fmt.Errorf("data: %q is named twice, by itself or by a folder: name it once", paths[k])
			}
		}
	}
	return nil
}

// sameTokenizer takes the tokenizer of the first source, and requires the same one of others.
func (c *Corpus) sameTokenizer(path string, from *Corpus) error {
	first := c.parts[0]
	if from == first {
		c.Tokenizer, c.EndOfText = first.Tokenizer, first.EndOfText
		c.Info.Tokenizer, c.Info.EndOfText = first.Info.Tokenizer, first.Info.EndOfText
		return nil
	}
	same := from.EndOfText == c.EndOfText && (from.Tokenizer == nil) == (c.Tokenizer == nil)
	if same && c.Tokenizer != nil {
		same = from.Tokenizer.SHA256() == c.Tokenizer.SHA256()
	}
	if !same {
		return fmt.Errorf("data: %q and %q have different tokenizers: prepare both with the same one", c.Sources[0].Path, path)
	}
	return nil
}

// joined is the tokens of several streams, one after another.
type joined struct {
	streams []Tokens
	starts  []int64
	n       int64
}

func (j *joined) add(t Tokens) {
	if t == nil || t.Len() == 0 {
		return
	}
	j.streams, j.starts = append(j.streams, t), append(j.starts, j.n)
	j.n += t.Len()
}

// Len returns the number of tokens.
func (j *joined) Len() int64 { return j.n }

// ReadTokens implements Tokens.
func (j *joined) ReadTokens(dst []int32, at int64) error {
	if err := checkRange(j.n, at, len(dst)); err != nil {
		return err
	}
	return j.each(dst, at, Tokens.ReadTokens)
}

// each calls do with each stream's part of a range.
func (j *joined) each(dst []int32, at int64, do func(Tokens, []int32, int64) error) error {
	i, found := slices.BinarySearch(j.starts, at)
	if !found {
		i--
	}
	for ; len(dst) > 0; i++ {
		from := at - j.starts[i]
		n := min(int64(len(dst)), j.streams[i].Len()-from)
		if err := do(j.streams[i], dst[:n], from); err != nil {
			return err
		}
		dst, at = dst[n:], at+n
	}
	return nil
}

// maskedJoined joins streams with prompts.
type maskedJoined struct{ *joined }

// ignore implements masked.
func (j maskedJoined) ignore(targets []int32, at int64) error {
	return j.each(targets, at, func(t Tokens, part []int32, at int64) error { return t.(masked).ignore(part, at) })
}
