//! Text to tokens. `#` begins a comment that ends with the line.

/// A token and the line it stands in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Token<'a> {
    Word(&'a str),
    Number(&'a str),
    Value(u32),
    Label(u32),
    Mark(char),
    End,
}

pub(super) fn lex(text: &str) -> Result<Vec<(Token<'_>, usize)>, (usize, String)> {
    let bytes = text.as_bytes();
    let (mut i, mut line) = (0, 1);
    let mut tokens = Vec::new();
    let run = |from: usize, ok: &dyn Fn(usize) -> bool| (from..bytes.len()).find(|&i| !ok(i)).unwrap_or(bytes.len());
    let word = |i: usize| bytes[i].is_ascii_alphanumeric() || bytes[i] == b'_';
    while i < bytes.len() {
        let start = i;
        match bytes[i] {
            b'\n' => {
                line += 1;
                i += 1;
            }
            b' ' | b'\t' | b'\r' => i += 1,
            b'#' => i = run(i, &|i| bytes[i] != b'\n'),
            b'%' | b'@' => {
                i = run(i + 1, &|i| bytes[i].is_ascii_digit());
                let n =
                    text[start + 1..i].parse().map_err(|_| (line, format!("'{}' needs a number", &text[start..i])))?;
                tokens.push((if bytes[start] == b'%' { Token::Value(n) } else { Token::Label(n) }, line));
            }
            b'0'..=b'9' | b'-' => {
                let hex = bytes[start..].starts_with(b"0x");
                let exponent =
                    |i: usize| matches!(bytes[i], b'-' | b'+') && matches!(bytes[i - 1], b'e' | b'E') && !hex;
                i = run(i + 1, &|i| word(i) || bytes[i] == b'.' || exponent(i));
                tokens.push((Token::Number(&text[start..i]), line));
            }
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                i = run(i, &word);
                tokens.push((Token::Word(&text[start..i]), line));
            }
            c @ (b'(' | b')' | b'{' | b'}' | b'[' | b']' | b',' | b':' | b'=' | b'*' | b'.' | b';') => {
                i += 1;
                tokens.push((Token::Mark(c as char), line));
            }
            _ => {
                let c = text[i..].chars().next().unwrap_or('?');
                return Err((line, format!("'{c}' has no meaning here")));
            }
        }
    }
    tokens.push((Token::End, line));
    Ok(tokens)
}
