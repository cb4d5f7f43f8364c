package prepare

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	pq "github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress"
	"github.com/stretchr/testify/require"

	"octet/data"
	"octet/tokenizer"
)

// The tokens of completions count in the loss, with the end of text, and those of prompts do not. A
// prompt has the ids that it has alone.
func TestCompletion(t *testing.T) {
	tok := trained(t)
	type row struct {
		Prompt     string `parquet:"prompt"`
		Completion string `parquet:"completion"`
	}
	rows := []row{{"the cat ", "sat on the mat"}, {"the c", "at sat"}, {"", "hello world"}, {"hello", ""}, {"hello ", " world"}}
	lines := ""
	for _, r := range rows {
		lines += jsonLine(t, map[string]string{"completion": r.Completion, "prompt": r.Prompt})
	}
	dir := t.TempDir()
	for _, path := range []string{write(t, dir+"/a.jsonl", lines), table(t, dir+"/a.parquet", rows)} {
		o := options(t, tok, path)
		o.Kind = data.KindCompletion
		c := run(t, o)
		for i, r := range rows {
			require.Equal(t, r.Prompt+r.Completion, c.texts[data.TrainPart][i])
			require.Equal(t, r.Completion+"<|endoftext|>", c.answer[data.TrainPart][i])
			prompt := tok.Encode([]int32{}, []byte(r.Prompt), tokenizer.Options{})
			require.Equal(t, prompt, c.ids[data.TrainPart][i][:len(prompt):len(prompt)])
		}
		whole := tok.Encode(nil, []byte("the cat sat on the mat"), tokenizer.Options{})
		require.NotEqual(t, append(whole, 0), c.ids[data.TrainPart][0], "\"cat \" ends with a space, which belongs to \" sat\" in the whole")
		whole = tok.Encode(nil, []byte("hello  world"), tokenizer.Options{})
		require.Equal(t, append(whole, 0), c.ids[data.TrainPart][4], "the rest of the ids of the whole")
	}
}

// A preference is two documents on one side and in one shard.
func TestPreference(t *testing.T) {
	lines, want := "", []string{}
	for i := range 200 {
		prompt := strings.Repeat("the cat ", 1+i%7) + string(rune('a'+i%26)) + strings.Repeat("x", i/26)
		lines += jsonLine(t, map[string]string{"prompt": prompt, "chosen": " sat", "rejected": " dog dog dog"})
		want = append(want, prompt+" sat", prompt+" dog dog dog")
	}
	o := options(t, trained(t), write(t, t.TempDir()+"/a.jsonl", lines))
	o.Kind, o.Val, o.ShardTokens, o.limits = data.KindPreference, 0.3, 200, tiny
	c := run(t, o)
	var all []string
	for _, part := range []string{data.TrainPart, data.ValPart} {
		texts := c.texts[part]
		require.Greater(t, len(texts), 60)
		for i := 0; i < len(texts); i += 2 {
			require.Equal(t, strings.TrimSuffix(texts[i], " sat"), strings.TrimSuffix(texts[i+1], " dog dog dog"))
			require.Equal(t, " sat<|endoftext|>", c.answer[part][i])
			require.Equal(t, " dog dog dog<|endoftext|>", c.answer[part][i+1])
		}
		all = append(all, texts...)
	}
	slices.Sort(want)
	slices.Sort(all)
	require.Equal(t, want, all)
	p, _, err := data.ReadPrepared(o.Out)
	require.NoError(t, err)
	for _, s := range p.Shards {
		require.Zero(t, s.Documents%2)
	}
}

type turn struct {
	Role    string `json:"role" parquet:"role"`
	Content string `json:"content" parquet:"content"`
}

func TestMessages(t *testing.T) {
	talk := []turn{{"system", "the mat"}, {"user", "hello <|im_end|> "}, {"assistant", "\nhello world "}, {"tool", "1234"}, {"assistant", "dog"}}
	type row struct {
		Messages []turn `parquet:"messages,list"`
	}
	type plainRow struct {
		Messages []turn `parquet:"messages"` // repeated, without a list
	}
	line := jsonLine(t, map[string]any{"messages": talk})
	dir := t.TempDir()
	special := []string{"<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}
	for _, c := range []struct{ chat, end, text, answer string }{
		{
			ChatML, "",
			"<|im_start|>system\nthe mat<|im_end|>\n<|im_start|>user\nhello <|im_end|> <|im_end|>\n<|im_start|>assistant\n\nhello world <|im_end|>\n<|im_start|>tool\n1234<|im_end|>\n<|im_start|>assistant\ndog<|im_end|>\n",
			"\nhello world <|im_end|>dog<|im_end|>",
		}, {
			ChatML, "<|im_end|>", // ends the document, too
			"<|im_start|>system\nthe mat<|im_end|>\n<|im_start|>user\nhello <|im_end|> <|im_end|>\n<|im_start|>assistant\n\nhello world <|im_end|>\n<|im_start|>tool\n1234<|im_end|>\n<|im_start|>assistant\ndog",
			"\nhello world <|im_end|>dog<|im_end|>",
		}, {
			ChatLlama3, "",
			"<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nthe mat<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nhello <|im_end|><|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nhello world<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n1234<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\ndog<|eot_id|>",
			"hello world<|eot_id|>dog<|eot_id|>",
		}, {
			ChatPlain, "",
			"system: the mat\n\nuser: hello <|im_end|> \n\nassistant: \nhello world \n\ntool: 1234\n\nassistant: dog",
			" \nhello world \n\n dog<|endoftext|>",
		},
	} {
		tok := trained(t, special...)
		if c.end != "" {
			require.NoError(t, tok.SetEndOfText(c.end))
		}
		for _, path := range []string{
			write(t, dir+"/a.jsonl", strings.Repeat(line, 3)), table(t, dir+"/a.parquet", []row{{talk}, {talk}, {talk}}, pq.DataPageVersion(1), pq.PageBufferSize(40)),
			table(t, dir+"/b.parquet", []plainRow{{talk}, {talk}, {talk}}),
		} {
			o := options(t, tok, path)
			o.Kind, o.Chat = data.KindMessages, c.chat
			got := run(t, o)
			require.Len(t, got.texts[data.TrainPart], 3)
			for i := range 3 {
				require.Equal(t, c.text, got.texts[data.TrainPart][i], path)
				require.Equal(t, c.answer, got.answer[data.TrainPart][i])
			}
			// The text of a special token is plain text, the special token is one.
			im, _ := tok.ID("<|im_end|>")
			n := 0
			for _, id := range got.ids[data.TrainPart][0] {
				if id == im {
					n++
				}
			}
			require.Equal(t, map[string]int{ChatML: 5, ChatLlama3: 0, ChatPlain: 0}[c.chat], n)
		}
	}
}

// The text between special tokens is encoded as one, but for the start of an answer, before which the
// model sees the prompt alone.
func TestPromptsAreWhole(t *testing.T) {
	tok := trained(t, "<|im_start|>", "<|im_end|>")
	line := jsonLine(t, map[string]any{"messages": []turn{{"user", "\nthe cat"}, {"assistant", "\ndog"}}})
	o := options(t, tok, write(t, t.TempDir()+"/a.jsonl", line))
	o.Kind = data.KindMessages
	encode := func(text string) []int32 {
		return tok.Encode(nil, []byte(text), tokenizer.Options{Special: true})
	}
	prompt := encode("<|im_start|>user\n\nthe cat<|im_end|>\n<|im_start|>assistant\n")
	require.NotEqual(t, prompt, slices.Concat(encode("<|im_start|>user\n"), encode("\nthe cat<|im_end|>\n<|im_start|>assistant\n")), "two newlines are a token")
	require.Equal(t, slices.Concat(prompt, encode("\ndog<|im_end|>\n<|endoftext|>")), run(t, o).ids[data.TrainPart][0])
}

// The tokenizer's template surrounds a document; its end of text is not doubled.
func TestTemplate(t *testing.T) {
	for _, after := range []string{"", "<|endoftext|>", "<b>"} {
		tok := trained(t, "<b>")
		var f map[string]any
		require.NoError(t, json.Unmarshal(tok.Files[0].Data, &f))
		single := []any{map[string]any{"SpecialToken": map[string]any{"id": "<b>"}}, map[string]any{"Sequence": map[string]any{"id": "A"}}}
		ids := map[string]any{"<b>": map[string]any{"ids": []int{1}}, "<|endoftext|>": map[string]any{"ids": []int{0}}}
		if after != "" {
			single = append(single, map[string]any{"SpecialToken": map[string]any{"id": after}})
		}
		f["post_processor"] = map[string]any{"type": "TemplateProcessing", "single": single, "special_tokens": ids}
		f["pre_tokenizer"] = map[string]any{"type": "ByteLevel", "add_prefix_space": true} // of the text, not of its parts
		raw, err := json.Marshal(f)
		require.NoError(t, err)
		tok, err = tokenizer.OpenBundle(write(t, t.TempDir()+"/tokenizer.json", string(raw)))
		require.NoError(t, err)
		for _, text := range []string{strings.Repeat("the cat sat\n", 300), strings.Repeat("a", 3000)} { // in parts, and without a cut
			want := tok.Encode(nil, []byte(text), tokenizer.Options{Template: true})
			if after != "<|endoftext|>" {
				want = append(want, 0)
			}
			for _, path := range []string{write(t, t.TempDir()+"/a.txt", text), write(t, t.TempDir()+"/a.jsonl", jsonLine(t, map[string]string{"text": text}))} {
				o := options(t, tok, path)
				o.limits = tiny
				require.Equal(t, want, run(t, o).ids[data.TrainPart][0])
			}
		}
	}
}

// Special tokens of a text are plain text unless asked for.
func TestSpecial(t *testing.T) {
	tok := trained(t)
	path := write(t, t.TempDir()+"/a.txt", "the<|endoftext|>cat")
	for _, special := range []bool{false, true} {
		o := options(t, tok, path)
		o.Special = special
		want := append(tok.Encode(nil, []byte("the<|endoftext|>cat"), tokenizer.Options{Special: special}), 0)
		require.Equal(t, want, run(t, o).ids[data.TrainPart][0])
		require.Equal(t, special, slices.Contains(want[:len(want)-1], 0))
	}
}

// The folder says whether a document has the end of text before its last id, also after an
// interruption, and verification compares it.
func TestEndInside(t *testing.T) {
	dir := t.TempDir()
	text := strings.Repeat("the cat sat\n", 300)
	talks := jsonLine(t, map[string]any{"messages": []turn{{"assistant", "dog"}}}) // whose only end of a turn ends it
	once := write(t, dir+"/once.jsonl", strings.Repeat(talks, 300))
	several := write(t, dir+"/several.jsonl", jsonLine(t, map[string]any{"messages": []turn{{"user", "cat"}, {"assistant", "dog"}}})+strings.Repeat(talks, 300))
	special := func(o *Options) { o.Special = true }
	chat := func(o *Options) {
		o.Kind = data.KindMessages
		require.NoError(t, o.Tokenizer.SetEndOfText("<|im_end|>"))
	}
	bos := func(o *Options) { // the template's BOS is the end of text
		var f map[string]any
		require.NoError(t, json.Unmarshal(o.Tokenizer.Files[0].Data, &f))
		f["post_processor"] = map[string]any{
			"type": "TemplateProcessing", "special_tokens": map[string]any{"<|endoftext|>": map[string]any{"ids": []int{0}}},
			"single": []any{map[string]any{"SpecialToken": map[string]any{"id": "<|endoftext|>"}}, map[string]any{"Sequence": map[string]any{"id": "A"}}},
		}
		raw, err := json.Marshal(f)
		require.NoError(t, err)
		o.Tokenizer, err = tokenizer.OpenBundle(write(t, t.TempDir()+"/tokenizer.json", string(raw)))
		require.NoError(t, err)
	}
	for _, c := range []struct {
		path   string
		change func(o *Options)
		want   bool
	}{
		{write(t, dir+"/a.txt", text+"<|endoftext|>"+text), nil, false},
		{write(t, dir+"/b.txt", text+"<|endoftext|>"+text), special, true},
		{write(t, dir+"/c.txt", text+"<|endoftext|>"), special, false},
		{write(t, dir+"/d.txt", "<|endoftext|>"+text), special, true},
		{write(t, dir+"/e.txt", "the<|endoftext|><|endoftext|>"), special, true},
		{write(t, dir+"/f.txt", text), bos, true},
		{write(t, dir+"/g.txt", "the"), bos, true},
		{once, chat, false},
		{several, chat, true},
		{several, func(o *Options) { o.Kind = data.KindMessages }, false},
	} {
		o := options(t, trained(t, "<|im_start|>", "<|im_end|>"), c.path)
		o.limits, o.ShardTokens = tiny, 500
		if c.change != nil {
			c.change(&o)
		}
		stop := errors.New("stop")
		ctx, cancel := context.WithCancelCause(t.Context())
		batches := 0
		o.Progress = func(_, _ int64) {
			if batches++; batches == 2 {
				cancel(stop)
			}
		}
		_, err := Run(ctx, o)
		if strings.HasSuffix(c.path, ".jsonl") { // a long text begins anew
			require.ErrorIs(t, err, stop)
		}
		if err != nil {
			o.Progress = nil
			_, err = Run(t.Context(), o)
		}
		cancel(nil)
		require.NoError(t, err)
		p, err := data.ReadDescription(o.Out)
		require.NoError(t, err)
		require.Equal(t, c.want, p.Tokenizer.EndInside, c.path)
		_, err = Inspect(o.Out, InspectOptions{Verify: true})
		require.NoError(t, err)
		p.Tokenizer.EndInside = !c.want
		require.NoError(t, data.WritePrepared(o.Out, p))
		_, err = Inspect(o.Out, InspectOptions{Verify: true})
		require.ErrorContains(t, err, "prepared.json: tokenizer.end_inside is ")
		_, err = Inspect(o.Out, InspectOptions{})
		require.NoError(t, err)
	}
}

// What is held out goes by the hash of the text alone: a preference by its prompt, a completion by its
// prompt and completion.
func TestSideOfAHash(t *testing.T) {
	preferences, completions := "", ""
	for i := range 200 {
		text := strings.Repeat("cat ", i)
		preferences += jsonLine(t, map[string]string{"prompt": "the" + text, "chosen": "a" + text, "rejected": text})
		completions += jsonLine(t, map[string]string{"prompt": "the", "completion": text})
	}
	for kind, lines := range map[string]string{data.KindPreference: preferences, data.KindCompletion: completions} {
		o := options(t, trained(t), write(t, t.TempDir()+"/a.jsonl", lines))
		o.Kind, o.Val = kind, 0.4
		var want []string
		for i := range 200 {
			text := strings.Repeat("cat ", i)
			sum := sha256.Sum256([]byte("the" + text)) // a prompt, or a prompt and a completion
			if float64(binary.BigEndian.Uint64(sum[:])>>11) >= 0.4*(1<<53) {
				continue
			}
			if kind == data.KindPreference {
				want = append(want, "the"+text+"a"+text)
			}
			want = append(want, "the"+text+map[bool]string{true: text}[kind == data.KindPreference])
		}
		require.Greater(t, len(want), 40)
		require.Equal(t, want, run(t, o).texts[data.ValPart], kind)
	}
}

// Two documents of a preference go to the next shard together if one of them does not fit.
func TestRoomForPairs(t *testing.T) {
	lines := ""
	for range 100 {
		lines += jsonLine(t, map[string]string{"prompt": "the", "chosen": " cat cat", "rejected": " dog dog dog dog"})
	}
	o := options(t, trained(t), write(t, t.TempDir()+"/a.jsonl", lines))
	o.Kind, o.limits = data.KindPreference, tiny
	one := len(o.Tokenizer.Encode(nil, []byte("the cat cat"), tokenizer.Options{})) + 1
	pair := one + len(o.Tokenizer.Encode(nil, []byte("the dog dog dog dog"), tokenizer.Options{})) + 1
	o.limits.shard = int64(5*pair + one) // five pairs, and room for the first half of another
	run(t, o)
	p, err := data.ReadDescription(o.Out)
	require.NoError(t, err)
	require.Len(t, p.Shards, 20)
	for _, s := range p.Shards {
		require.EqualValues(t, 10, s.Documents)
	}
	// A document that no shard holds is refused, in parts too.
	text := strings.Repeat("the cat\n", 400)
	for _, path := range []string{write(t, t.TempDir()+"/a.txt", text), write(t, t.TempDir()+"/a.jsonl", jsonLine(t, map[string]string{"text": text}))} {
		o = options(t, trained(t), path)
		o.limits = tiny
		o.limits.shard = 300
		_, err = Run(t.Context(), o)
		require.ErrorContains(t, err, "a document has more than 300 ids: split it")
	}
}

// The text after another text gets no prefix, and the template of the tokenizer is not added to a
// conversation that is written with tokens of its own.
func TestPlacesOfSegments(t *testing.T) {
	special := []string{"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}
	tok := trained(t, special...)
	var f map[string]any
	require.NoError(t, json.Unmarshal(tok.Files[0].Data, &f))
	begin, _ := tok.ID(special[0])
	f["post_processor"] = map[string]any{
		"type": "TemplateProcessing", "special_tokens": map[string]any{special[0]: map[string]any{"ids": []int32{begin}}},
		"single": []any{map[string]any{"SpecialToken": map[string]any{"id": special[0]}}, map[string]any{"Sequence": map[string]any{"id": "A"}}},
	}
	f["pre_tokenizer"] = map[string]any{"type": "ByteLevel", "add_prefix_space": true}
	raw, err := json.Marshal(f)
	require.NoError(t, err)
	tok, err = tokenizer.OpenBundle(write(t, t.TempDir()+"/tokenizer.json", string(raw)))
	require.NoError(t, err)
	for chat, want := range map[string]string{
		ChatLlama3: "<|begin_of_text|><|start_header_id|> assistant<|end_header_id|> \n\ndog<|eot_id|><|start_header_id|> user<|end_header_id|> \n\ncat<|eot_id|>",
		// Answers and what follows them are segments of their own, without a space before "user".
		ChatPlain: "<|begin_of_text|> assistant: dog\n\nuser: cat",
	} {
		o := options(t, tok, write(t, t.TempDir()+"/a.jsonl", jsonLine(t, map[string]any{"messages": []turn{{"assistant", "dog"}, {"user", "cat"}}})))
		o.Kind, o.Chat = data.KindMessages, chat
		require.Equal(t, []string{want}, run(t, o).texts[data.TrainPart], chat)
	}
}

// The values of the last row of a page, and of a row whose messages are on several pages, are whole.
func TestRowsAcrossPages(t *testing.T) {
	type row struct {
		Messages []turn `parquet:"messages,list"`
	}
	var rows []row
	var want []string
	for i := range 7 {
		var r row
		text := ""
		for k := range 150 {
			r.Messages = append(r.Messages, turn{"assistant", fmt.Sprint(strings.Repeat("cat ", k%5), i*1000+k)})
			if text += "assistant: " + r.Messages[k].Content; k < 149 {
				text += "\n\n"
			}
		}
		rows, want = append(rows, r), append(want, text)
	}
	type text struct {
		Text string `parquet:"text"`
	}
	var texts []text
	var wantTexts []string
	for i := range 1000 {
		texts = append(texts, text{fmt.Sprint("cat ", 1000+i)})
		wantTexts = append(wantTexts, texts[i].Text)
	}
	for _, version := range []int{1, 2} {
		for _, codec := range []compress.Codec{&pq.Uncompressed, &pq.Snappy, &pq.Zstd} {
			written := []pq.WriterOption{pq.DataPageVersion(version), pq.PageBufferSize(200), pq.Compression(codec)}
			o := options(t, trained(t), table(t, t.TempDir()+"/a.parquet", rows, written...))
			o.Kind, o.Chat = data.KindMessages, ChatPlain
			require.Equal(t, want, run(t, o).texts[data.TrainPart])
			o = options(t, trained(t), table(t, t.TempDir()+"/b.parquet", texts, written...))
			require.Equal(t, wantTexts, run(t, o).texts[data.TrainPart])
		}
	}
}
