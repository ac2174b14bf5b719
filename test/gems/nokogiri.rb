# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
require "nokogiri"

class TestNokogiri < GemTest
  extension(%r{nokogiri/(\d\.\d/)?nokogiri\.so\z})

  ITEMS = (1..12).map { |i| "<n:item k='#{i}'>t&amp;#{i}<![CDATA[<x>]]></n:item>" }.join
  XML = "<?xml version='1.0' encoding='UTF-8'?><r xmlns:n='urn:n' id='ü'>#{ITEMS}<!-- c --></r>"
  HTML = "<title>é</title><body><div class='a b'><p>one<p>two <b>bold</i></div>" \
         "<ul>#{"<li>x</li>" * 10}</ul><script>1 < 2</script>"
  SHEET = <<~XSL
    <xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform" xmlns:n="urn:n">
      <xsl:param name="p"/><xsl:output method="text"/>
      <xsl:template match="/">
        <xsl:for-each select="//n:item[@k &lt; 4]"><xsl:value-of select="concat(@k, $p)"/></xsl:for-each>
      </xsl:template>
    </xsl:stylesheet>
  XSL

  work(:xml) do
    doc = Nokogiri::XML(XML) { |config| config.strict }
    [doc.to_xml, doc.xpath("//n:item").map(&:text), doc.root["id"], doc.xpath("count(//n:item)")]
  end
  work(:html4) do
    doc = Nokogiri::HTML4(HTML)
    [doc.to_html, doc.css("div.a p").map(&:text), doc.title, doc.errors.size]
  end
  work(:html5) do
    doc = Nokogiri::HTML5(HTML)
    [doc.to_html, doc.css("ul > li:nth-child(2)").to_html, doc.at_css("script").text]
  end
  work(:fragments) do
    fragment = Nokogiri::HTML5.fragment("<b>x</b>y<i>z")
    [fragment.to_html, fragment.children.map(&:name)]
  end

  work(:changes) do
    doc = Nokogiri::XML(XML)
    doc.root.children.each_slice(2) { |first, second| second&.unlink; first["new"] = "ä" }
    moved = doc.root.element_children.first
    other = Nokogiri::XML("<o/>")
    other.root << moved
    other.root.add_child("<a><b/></a>").first.wrap("<w/>")
    doc.root.inner_html = "#{doc.root.element_children.first(2).map(&:to_xml).join}<new/>"
    [doc.to_xml, other.to_xml(indent: 0), moved.document == other]
  end

  work(:builder) do
    builder = Nokogiri::XML::Builder.new(encoding: "UTF-8") do |xml|
      xml.list("n" => 2) { 5.times { |i| xml.item(i, id: "é#{i}") } }
    end
    builder.to_xml
  end

  work(:events) do
    events = []
    handler = Class.new(Nokogiri::XML::SAX::Document) do
      define_method(:start_element) { |name, attributes| events << [name, attributes] }
      define_method(:characters) { |text| events << text }
      define_method(:cdata_block) { |text| events << [:cdata, text] }
    end
    Nokogiri::XML::SAX::Parser.new(handler.new).parse(XML)
    push = Nokogiri::XML::SAX::PushParser.new(handler.new)
    XML.scan(/.{1,30}/m) { |part| push << part }
    push.finish
    events
  end

  work(:reader) { Nokogiri::XML::Reader(XML).map { |node| [node.name, node.attributes, node.value?] } }
  work(:xslt) { Nokogiri::XSLT(SHEET).apply_to(Nokogiri::XML(XML), ["p", "'-'"]) }

  work(:schemas) do
    schema = Nokogiri::XML::RelaxNG("<element name='r' xmlns='http://relaxng.org/ns/structure/1.0'>" \
                                    "<oneOrMore><element name='a'><text/></element></oneOrMore></element>")
    valid = schema.valid?(Nokogiri::XML("<r><a>x</a></r>"))
    [valid, schema.validate(Nokogiri::XML("<r><b/></r>")).map { |e| e.message.to_s }]
  end

  work(:functions) do
    handler = Class.new { def longer(nodes, limit) = nodes.select { |node| node.text.size > limit.to_i } }
    Nokogiri::XML(XML).xpath("//n:item[nokogiri:longer(., 6)]", handler.new).map { |node| node["k"] }
  end

  def test_errors
    assert_raises(Nokogiri::XML::SyntaxError) { Nokogiri::XML("<a><b></a>", &:strict) }
    assert_raises(Nokogiri::XML::XPath::SyntaxError) { Nokogiri::XML(XML).xpath("//[") }
    assert_raises(Nokogiri::CSS::SyntaxError) { Nokogiri::XML(XML).css("a[") }
    assert_raises(Nokogiri::XML::XPath::SyntaxError) do
      Nokogiri::XML(XML).xpath("//n:item[nokogiri:none(.)]", Object.new)
    end
    raising = Class.new { def boom(_) = raise(ArgumentError, "asked for") }
    20.times do
      assert_raises(ArgumentError) { Nokogiri::XML(XML).xpath("//n:item[nokogiri:boom(.)]", raising.new) }
    end
  end

  def test_encodings
    latin = Nokogiri::HTML4("<meta charset='iso-8859-1'><p>\xe9".b)
    assert_equal "é", latin.at_css("p").text
    assert_equal "<a>é</a>", Nokogiri::XML("<a>é</a>".encode("UTF-16")).root.to_xml(encoding: "UTF-8")
  end

  # A node keeps its document alive. As long as a program refers to a node's wrapper, the gem gives that one
  # again.
  def test_nodes_outlive_their_documents
    nodes = Array.new(50) { Nokogiri::XML(XML).at_xpath("//n:item[7]", "n" => "urn:n") }
    GC.start
    move
    assert_equal ["7"], nodes.map { |node| node["k"] }.uniq
    assert_same nodes[3], nodes[3].parent.element_children[6]
    in_child { GC.start; move; assert_same nodes[3], nodes[3].parent.element_children[6] }
  end

  def test_unlinked_nodes_are_freed_with_their_document
    2_000.times { Nokogiri::XML("<a><b/></a>").root.children.first.unlink }
    GC.start
    in_child { 500.times { Nokogiri::XML("<a><b/></a>").root.children.first.unlink }; GC.start }
  end
end
