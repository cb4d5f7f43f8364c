package prepare

import (
	"fmt"
	"slices"

	"octet/data"
	"octet/tokenizer"
)

// limits bound memory; sizes in bytes.
type limits struct {
	batch    int   // a batch ends with the document that reaches it
	document int   // a line or a row
	part     int   // a longer text is encoded in parts
	uncut    int   // a text without a place to cut it
	inFlight int64 // documents between reader and writer
	shard    int64 // ids of a shard
}

var defaultLimits = limits{batch: 1 << 20, document: 64 << 20, part: 1 << 20, uncut: 8 << 20, inFlight: 64 << 20, shard: data.MaxShardTokens}

// cut returns where to cut a text after at most a part, or somewhat later: its length if it is short
// and last, 0 if more text is needed to tell. next is the length at which to ask again.
func (l *limits) cut(tok *tokenizer.Tokenizer, text []byte, last bool) (n, next int, err error) {
	for size := l.part; ; size *= 2 {
		if len(text) <= size && last {
			return len(text), 0, nil
		}
		if len(text) < size {
			return 0, size, nil
		}
		if n := tok.Cut(text[:size]); n > 0 {
			return n, 0, nil
		}
		if size >= l.uncut && !tok.Cuttable() {
			return 0, 0, fmt.Errorf("the text has more than %d bytes, and this tokenizer's normalizer changes several characters at once, so that octet cannot encode a text in parts: make shorter documents of it, for example JSON lines", size)
		}
		if size >= l.uncut {
			return 0, 0, fmt.Errorf("%d bytes of text have no place at which this tokenizer lets them be cut, such as the start of a word: break the text into lines", size)
		}
	}
}

// worker encodes documents.
type worker struct {
	*Options
	enc    *tokenizer.Encoder
	chat   chatWriter
	width  int
	guard  bool // the end of text must not be in a text
	record record

	batch  *batch  // that gets the ids
	tokens int64   // of the document so far
	last   int32   // id
	inside bool    // ids followed the end of text
	part   []int32 // of the last part
	work   [2][]int32
}

func newWorker(o *Options) *worker {
	end := o.Tokenizer.EndOfText
	return &worker{
		Options: o, enc: o.Tokenizer.NewEncoder(), chat: newChatWriter(o), width: data.ShardWidth(o.Tokenizer.Vocab()),
		guard: !o.Special || len(o.Tokenizer.Text(end)) > 0,
	}
}

// encoded is a document, or a part of one, in a batch's bytes.
type encoded struct {
	tokens int64
	bytes  int64 // of text
	val    bool
	inside bool // it has the end of text before its last id
	more   bool // parts of the document follow
	pair   bool // the next document belongs to it
}

// encode encodes the documents of an item and appends them to the batch.
func (w *worker) encode(b *batch, it *item) error {
	w.batch = b
	switch {
	case it.leftOut:
		return nil
	case it.part:
		return w.encodePart(it)
	case it.json:
		if err := w.record.parseLine(b.span(it.first), w.Options); err != nil {
			return err
		}
	default:
		if err := w.parseColumns(b, it); err != nil {
			return err
		}
	}
	r := &w.record
	defer r.forget()
	if r.empty(w.Kind) {
		it.empty = true
		return nil
	}
	val := w.Val > 0 && heldOut(r.hash(w.Kind), w.Val)
	switch w.Kind {
	case data.KindDocuments:
		return w.document(val, segment{text: r.values[0], token: -1, answer: true})
	case data.KindMessages:
		return w.document(val, w.chat.write(r.messages)...)
	}
	for i := 1; i < len(kinds[w.Kind]); i++ {
		if err := w.document(val, segment{text: r.values[0], token: -1}, segment{text: r.values[i], token: -1, answer: true}); err != nil {
			return err
		}
		b.encoded[len(b.encoded)-1].pair = i < len(kinds[w.Kind])-1
	}
	return nil
}

// parseColumns fills the record with a row of a table or a file.
func (w *worker) parseColumns(b *batch, it *item) error {
	if w.Kind != data.KindMessages {
		for i := range it.spans {
			w.record.values[i] = b.span(it.first + i)
		}
		return nil
	}
	list := w.record.messages[:0]
	for i := 0; i < it.spans; i += 2 {
		list = append(list, message{b.span(it.first + i), b.span(it.first + i + 1)})
	}
	w.record.messages = list
	return checkMessages(list)
}

// document appends a document of segments to the batch. Its first and last ids are those of the
// tokenizer's template, unless it is written with tokens of its own; the end of text follows.
func (w *worker) document(val bool, segments ...segment) error {
	w.tokens, w.inside = 0, false
	before, after := w.Tokenizer.Template()
	if w.Chat == ChatLlama3 {
		before, after = nil, nil
	}
	w.add(before, false)
	size, answered := int64(0), false // answered: the document ends with the text of an answer
	place := tokenizer.AfterNothing
	for len(segments) > 0 {
		s := segments[0]
		size += int64(len(s.text))
		switch {
		case s.token >= 0:
			w.add([]int32{s.token}, s.answer)
			place, segments, answered = tokenizer.AfterToken, segments[1:], false
			continue
		case !s.answer && len(segments) > 1 && segments[1].token < 0 && segments[1].answer:
			size += int64(len(segments[1].text))
			if err := w.promptAndAnswer(s.text, segments[1].text, place); err != nil {
				return err
			}
			segments, answered = segments[2:], true
		default:
			if err := w.parts(s.text, place, func(ids []int32) error { return w.addText(ids, s.answer) }); err != nil {
				return err
			}
			segments, answered = segments[1:], s.answer
		}
		place = tokenizer.AfterText
	}
	w.finish(encoded{bytes: size, val: val}, after, answered)
	return nil
}

// promptAndAnswer adds a prompt and its answer. The prompt has the ids that it has alone, as the model
// sees them when it answers. The answer has the rest of the ids of both texts together. Where a token
// spans both, the answer has the ids of a text that follows the prompt.
func (w *worker) promptAndAnswer(prompt, answer []byte, place tokenizer.After) error {
	ids, err := w.text(w.work[0][:0], prompt, place)
	if err != nil {
		return err
	}
	w.work[0] = ids
	whole, err := w.text(w.work[1][:0], slices.Concat(prompt, answer), place)
	if err != nil {
		return err
	}
	w.work[1] = whole
	if len(whole) >= len(ids) && slices.Equal(whole[:len(ids)], ids) {
		whole = whole[len(ids):]
	} else {
		if len(prompt) > 0 {
			place = tokenizer.AfterText
		}
		if whole, err = w.text(whole[:0], answer, place); err != nil {
			return err
		}
		w.work[1] = whole
	}
	if err := w.addText(ids, false); err != nil {
		return err
	}
	return w.addText(whole, true)
}

// text appends the ids of a text to dst.
func (w *worker) text(dst []int32, text []byte, place tokenizer.After) ([]int32, error) {
	err := w.parts(text, place, func(ids []int32) error {
		dst = append(dst, ids...)
		return nil
	})
	return dst, err
}

// parts encodes a text, a long one in parts, and calls add with the ids of each.
func (w *worker) parts(text []byte, place tokenizer.After, add func(ids []int32) error) error {
	for {
		n, _, err := w.limits.cut(w.Tokenizer.Tokenizer, text, true)
		if err != nil {
			return err
		}
		w.part = w.enc.Encode(w.part[:0], text[:n], tokenizer.Options{Special: w.Special, After: place})
		if err := add(w.part); err != nil || n == len(text) {
			return err
		}
		text, place = text[n:], tokenizer.AfterText
	}
}

// encodePart appends a part of a long text file to the batch.
func (w *worker) encodePart(it *item) error {
	w.tokens, w.inside = 0, false
	before, after := w.Tokenizer.Template()
	place := tokenizer.AfterText
	if it.begins {
		w.add(before, true)
		place = tokenizer.AfterNothing
	}
	text := w.batch.span(it.first)
	if err := w.parts(text, place, func(ids []int32) error { return w.addText(ids, true) }); err != nil {
		return err
	}
	e := encoded{bytes: int64(len(text)), val: heldOut(it.hash, w.Val)}
	if !it.ends {
		e.more = true // no text is cut after the end of text
		w.store(e)
		return nil
	}
	w.finish(e, after, true)
	return nil
}

// add adds ids; answer: they count in the loss.
func (w *worker) add(ids []int32, answer bool) {
	if len(ids) == 0 {
		return
	}
	end := w.Tokenizer.EndOfText
	w.inside = w.inside || w.tokens > 0 && w.last == end || slices.Contains(ids[:len(ids)-1], end)
	w.batch.ids = data.AppendIDs(grow(w.batch.ids, len(ids)*w.width), ids, w.width)
	w.tokens, w.last = w.tokens+int64(len(ids)), ids[len(ids)-1]
	if w.Kind == data.KindDocuments {
		return
	}
	bit := byte(0)
	if answer {
		bit = 1
	}
	for range ids {
		w.batch.mask = append(w.batch.mask, bit)
	}
}

// grow makes room for n bytes. It doubles long buffers, which append would grow in small steps: all
// buffers of the steps are in memory until the next garbage collection.
func grow(buffer []byte, n int) []byte {
	if n > cap(buffer)-len(buffer) {
		buffer = slices.Grow(buffer, max(n, len(buffer)))
	}
	return buffer
}

// addText adds the ids of text, which are not the end of text.
func (w *worker) addText(ids []int32, answer bool) error {
	if w.guard && slices.Contains(ids, w.Tokenizer.EndOfText) {
		token, _ := w.Tokenizer.Decode(nil, []int32{w.Tokenizer.EndOfText}, false) // its id is in ids
		return fmt.Errorf("the text contains the end-of-text token %q: remove it, or choose another with --eos", token)
	}
	w.add(ids, answer)
	return nil
}

// finish adds the last ids of a document. The end of text counts in the loss where it ends an answer.
func (w *worker) finish(e encoded, after []int32, answer bool) {
	w.add(after, answer)
	if w.tokens == 0 || w.last != w.Tokenizer.EndOfText {
		w.add([]int32{w.Tokenizer.EndOfText}, answer)
	}
	w.store(e)
}

// store ends a document, or a part of one.
func (w *worker) store(e encoded) {
	e.tokens, e.inside = w.tokens, w.inside
	w.batch.encoded = append(w.batch.encoded, e)
}
