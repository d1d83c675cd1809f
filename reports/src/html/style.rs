//! The style sheet: light and dark by the reader's preference, one column, printable.

use std::fmt::Write as _;

use crate::charts::palette::DARK;

const BASE: &str = r#"
:root{color-scheme:light dark;--paper:#fff;--ink:#1b1e23;--muted:#5a6370;--line:#d8dce1;--panel:#f6f7f9;--figure:#fff;--accent:#0063a3;
--good:#00694b;--bad:#a53a00;--unsure:#6b4a00;--goodbg:#e6f4ee;--badbg:#fdeee3;--unsurebg:#fbf3dc}
@media screen and (prefers-color-scheme:dark){:root{--paper:#101216;--ink:#e8eaed;--muted:#a4adb9;--line:#343a42;--panel:#171a1f;--figure:#171a1f;--accent:#7cc0f0;
--good:#5fd6ae;--bad:#ff9d5c;--unsure:#e9c15a;--goodbg:#12261f;--badbg:#2e1d12;--unsurebg:#2a2412}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main,header,footer,nav{max-width:1200px;margin:0 auto;padding:0 24px}
header{padding-top:28px}
h1{font-size:1.75rem;line-height:1.2;margin:0 0 .5rem;overflow-wrap:anywhere}
h2{font-size:1.3rem;margin:2.4rem 0 .7rem;padding-top:.6rem;border-top:1px solid var(--line)}
h3{font-size:1.05rem;margin:1.4rem 0 .4rem;overflow-wrap:anywhere}
p{margin:.4rem 0 .8rem;max-width:80ch;overflow-wrap:anywhere}
code,pre,.tok{font-family:ui-monospace,"SFMono-Regular",Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:.9em}
pre{background:var(--panel);padding:.7rem .9rem;border-radius:6px;overflow-x:auto;white-space:pre-wrap;overflow-wrap:anywhere}
.command{color:var(--muted);overflow-wrap:anywhere}
nav ul{display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;list-style:none;padding:0;margin:.6rem 0 0}
a{color:var(--accent)}
a:focus-visible,summary:focus-visible,.scroll:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
.verdict{display:inline-block;font-weight:600;border:1px solid currentColor;border-radius:999px;padding:0 .7em;white-space:nowrap}
.good{color:var(--good);background:var(--goodbg)}.bad{color:var(--bad);background:var(--badbg)}.unsure{color:var(--unsure);background:var(--unsurebg)}
.lead{font-size:1.2rem;font-weight:600;max-width:70ch}
.box{border-left:4px solid;padding:.5rem .9rem;margin:.5rem 0;border-radius:0 6px 6px 0;max-width:84ch}
.box.good,.box.bad,.box.unsure{color:var(--ink)}.box.good{border-color:var(--good)}.box.bad{border-color:var(--bad)}.box strong{color:var(--good)}.box.bad strong{color:var(--bad)}
.box p{margin:0}
.scroll{overflow-x:auto;margin:.5rem 0 1rem}
table{border-collapse:collapse;font-size:.93rem;min-width:40%}
caption{text-align:left;color:var(--muted);padding-bottom:.3rem}
th,td{text-align:left;padding:.3rem .9rem .3rem 0;border-bottom:1px solid var(--line);vertical-align:top;overflow-wrap:break-word;max-width:26rem}
thead th{color:var(--muted);font-weight:600;vertical-align:bottom;max-width:9rem}
tbody th{font-weight:600}
.n{text-align:right;font-variant-numeric:tabular-nums}
td.n{white-space:nowrap}
figure{margin:.8rem 0 1.4rem;border:1px solid var(--line);border-radius:8px;padding:8px;overflow-x:auto;background:var(--figure)}
figcaption{color:var(--muted);font-size:.93rem;padding:.2rem .6rem .3rem;overflow-wrap:anywhere}
svg.chart{display:block;width:100%;min-width:760px;height:auto}
details{margin:.4rem 0 1rem}
summary{cursor:pointer;color:var(--accent)}
ol.strip{display:flex;flex-wrap:wrap;gap:6px;list-style:none;padding:0;margin:.6rem 0 1rem}
ol.strip li{border:1px solid var(--line);border-radius:6px;background:var(--panel);min-width:58px;max-width:200px;display:flex;flex-direction:column}
ol.strip li.prompt{border-style:dotted}
ol.strip li.decides{border:2px solid var(--ink)}
ol.strip li.differs{border:2px solid var(--bad)}
ol.strip .at{font-size:.78rem;color:var(--muted);padding:1px 6px;border-bottom:1px solid var(--line);white-space:nowrap}
ol.strip .tok{padding:2px 6px;white-space:pre-wrap;overflow-wrap:anywhere}
ol.strip .id{font-size:.75rem;color:var(--muted);padding-left:.5em}
ol.strip .side{font-size:.72rem;font-weight:600;border:1px solid;border-radius:3px;padding:0 3px;margin-right:4px;white-space:nowrap}
ol.strip .mark{font-size:.75rem;font-weight:600;padding:0 6px;color:var(--bad)}
ol.strip li.decides .mark{color:var(--ink)}
.legend{color:var(--muted);font-size:.93rem}
ul.plain{padding-left:1.2rem;max-width:90ch}
footer{color:var(--muted);font-size:.9rem;padding-top:2rem;padding-bottom:3rem}
.sr{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
@media print{body{font-size:11pt}nav{display:none}h2{break-after:avoid}figure,.box,tr,ol.strip li{break-inside:avoid}
svg.chart{min-width:0}.scroll,figure{overflow:visible}details::details-content{content-visibility:visible;block-size:auto}a{color:inherit}
main,header,footer{max-width:none;padding-left:0;padding-right:0}*{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
"#;

/// The style sheet. Figures are drawn in light colours; on a dark screen each of them is mapped to its dark one, by the
/// attribute that the drawing carries.
pub(crate) fn sheet() -> String {
    let mut out = BASE.to_owned();
    out.push_str("@media screen and (prefers-color-scheme:dark){\n");
    for (light, dark) in DARK {
        let (light, dark) = (light.css(), dark.css());
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "svg.chart [fill=\"{light}\"]{{fill:{dark}}}svg.chart [stroke=\"{light}\"]{{stroke:{dark}}}"
        );
    }
    out.push_str("}\n");
    out
}
